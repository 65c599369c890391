PROCESSOR_REGISTRY = {}


def register_processor(processor_name, processor_function):
    if processor_name in PROCESSOR_REGISTRY:
        raise ValueError(f"Processor name {processor_name} already registered")
    PROCESSOR_REGISTRY[processor_name] = processor_function
