class Logger:
    def log_metrics(self, metrics, step, prefix="", step_metric=None, step_finished=False):
        pass
