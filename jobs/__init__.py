"""When and with what: the jobs, their schedules and sensors, the recipes, and the one `definitions.py`."""
