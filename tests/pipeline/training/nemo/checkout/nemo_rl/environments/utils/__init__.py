import importlib
import os

from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY

ENV_REGISTRY = {}


def register_env(env_name, actor_class_fqn):
    if env_name in ENV_REGISTRY:
        raise ValueError(f"Env name {env_name} already registered")
    ENV_REGISTRY[env_name] = {"actor_class_fqn": actor_class_fqn}


def create_env(env_name, env_config):
    name = ENV_REGISTRY[env_name]["actor_class_fqn"]
    module, _, actor = name.rpartition(".")
    runtime = {"py_executable": ACTOR_ENVIRONMENT_REGISTRY[name], "env_vars": dict(os.environ)}
    return getattr(importlib.import_module(module), actor).options(runtime_env=runtime).remote(env_config)
