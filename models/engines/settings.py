"""Settings of the engines vllm and openai."""

from pydantic import Field, field_validator

from gradus.components.addresses import VARIABLE, is_address
from gradus.components.settings import INCIDENTAL, MAX_PROCESSES, MAX_ROWS, MAX_TOKENS, MAX_TRIES, Config

CPU_CACHE_GIB = 1
"""On a CPU: memory for the cache of vLLM."""


class VllmConfig(Config):
    """Settings of vLLM; see its own documentation of the arguments of the same name."""

    tensor_parallel_size: int = Field(default=1, ge=1, le=MAX_PROCESSES)
    """Accelerators that one copy of the model is spread over."""
    data_parallel_size: int = Field(default=1, ge=1, le=MAX_PROCESSES)
    """Copies of the model."""
    gpu_memory_utilization: float = Field(default=0.85, gt=0.0, le=1.0, json_schema_extra=INCIDENTAL)
    """Share of an accelerator's memory for weights and cache."""
    max_num_seqs: int = Field(default=256, ge=1, le=MAX_ROWS, json_schema_extra=INCIDENTAL)
    """Rollouts generated together."""
    max_model_len: int = Field(default=0, ge=0, le=MAX_TOKENS)
    """Prompt and completion tokens at most; 0 for what the policy allows."""
    enforce_eager: bool = False
    """Leave out graph capture: starts sooner, runs slower."""
    sleep: bool = Field(default=False, json_schema_extra=INCIDENTAL)
    """Free the accelerator after every rollout stage, so that an update on the same one has room."""


class ServerConfig(Config):
    """Address of an OpenAI-compatible server and the form of requests to it."""

    url: str = "http://127.0.0.1:8000/v1"
    """Address of its API."""
    model: str = ""
    """Name of the model there; empty takes the only one it has."""
    api_key_variable: str = Field(default="OPENAI_API_KEY", pattern=VARIABLE, json_schema_extra=INCIDENTAL)
    """Environment variable with the key, or with `user:password` after the word Basic; itself never stored.

    Its name ends in _API_KEY, or your own environment lists it in GRADUS_KEY_VARIABLES.
    """
    concurrency: int = Field(default=64, ge=1, le=MAX_PROCESSES, json_schema_extra=INCIDENTAL)
    """Requests under way at once."""
    retries: int = Field(default=5, ge=0, le=MAX_TRIES, json_schema_extra=INCIDENTAL)
    """Tries after a lost connection, a 429 or a 5xx, each after a longer wait."""
    tokens: bool = True
    """Send token ids and ask for those sampled with their log-probs, as vLLM and SGLang can; otherwise text."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        if not is_address(url):
            raise ValueError("it is not an address; write it as http://127.0.0.1:8000/v1")  # which may hold a password
        return url
