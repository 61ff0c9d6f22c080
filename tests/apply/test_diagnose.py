"""The reason of a failed start, from logs as the engines print them."""

from __future__ import annotations

import signal
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.apply.diagnose import start_failure, without_prefix

CORE = "(EngineCore pid=41) ERROR 11-29 23:00:27 [core.py:1510] "

CASES: dict[str, tuple[str, int | None, str]] = {
    "vLLM: an argument that its parser does not have": (
        """
        usage: api_server.py [-h] [--headless]
                             [--disable-log-stats]
                             [model_tag]
        api_server.py: error: unrecognized arguments: --bogus-flag
        """,
        2,
        "unrecognized arguments: --bogus-flag",
    ),
    "vLLM: the engine core reports, is repeated without prefix, and the API server points at it": (
        f"""
        (APIServer pid=40) INFO 11-29 22:59:57 [api_utils.py:286] non-default args: {{'model': '/m'}}
        {CORE}EngineCore failed to start.
        {CORE}Traceback (most recent call last):
        {CORE}  File "/venv/lib/python3.11/site-packages/vllm/v1/core/kv_cache_utils.py", line 1030, in check
        {CORE}    raise ValueError(
        {CORE}ValueError: To serve at least one request with the model's max seq len (4194304), 2.0 GiB is needed.
        (EngineCore pid=41) ERROR 11-29 23:00:29 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly.
        Process EngineCore:
        Traceback (most recent call last):
          File "/venv/lib/python3.11/site-packages/vllm/v1/core/kv_cache_utils.py", line 1030, in check
            raise ValueError(
        ValueError: To serve at least one request with the model's max seq len (4194304), 2.0 GiB is needed.
        Traceback (most recent call last):
          File "/venv/lib/python3.11/site-packages/vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
            raise RuntimeError(
        RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
        /usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: 1 leaked object
          warnings.warn('resource_tracker: There appear to be %d '
        """,
        1,
        "ValueError: To serve at least one request with the model's max seq len (4194304), 2.0 GiB is needed.",
    ),
    "vLLM 0.26: every line of a process has its prefix; one worker runs out of memory, another loses its peer": (
        """
        (Worker_TP1 pid=52) ERROR 11-29 12:00:03 [multiproc_executor.py:843] WorkerProc failed to start.
        (Worker_TP1 pid=52) ERROR 11-29 12:00:03 [multiproc_executor.py:843] Traceback (most recent call last):
        (Worker_TP0 pid=51) ERROR 11-29 12:00:03 [multiproc_executor.py:843] WorkerProc failed to start.
        (Worker_TP1 pid=52) ERROR 11-29 12:00:03 [multiproc_executor.py:843]   File "dist.py", line 9, in recv
        (Worker_TP0 pid=51) ERROR 11-29 12:00:03 [multiproc_executor.py:843] Traceback (most recent call last):
        (Worker_TP1 pid=52) ERROR 11-29 12:00:03 [multiproc_executor.py:843] torch.distributed.DistBackendError: NCCL
        (Worker_TP0 pid=51) ERROR 11-29 12:00:03 [multiproc_executor.py:843]   File "weights.py", line 3, in load
        (Worker_TP0 pid=51) ERROR 11-29 12:00:03 [multiproc_executor.py:843] torch.OutOfMemoryError: CUDA out of memory.
        (EngineCore pid=41) ERROR 11-29 12:00:04 [core.py:910] EngineCore failed to start.
        (EngineCore pid=41) ERROR 11-29 12:00:04 [core.py:910] Traceback (most recent call last):
        (EngineCore pid=41) ERROR 11-29 12:00:04 [core.py:910]   File "executor.py", line 655, in wait_for_ready
        (EngineCore pid=41) ERROR 11-29 12:00:04 [core.py:910] Exception: WorkerProc initialization failed.
        (APIServer pid=40) Traceback (most recent call last):
        (APIServer pid=40)   File "utils.py", line 1431, in wait_for_engine_startup
        (APIServer pid=40) RuntimeError: Engine core initialization failed. See root cause above.
        """,
        1,
        "OutOfMemoryError: CUDA out of memory.",
    ),
    "vLLM: a configuration that pydantic refuses": (
        """
        Traceback (most recent call last):
          File "/venv/lib/python3.11/site-packages/pydantic/_internal/_dataclasses.py", line 121, in __init__
            s.__pydantic_validator__.validate_python(ArgsKwargs(args, kwargs), self_instance=s)
        pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig
          Value error, Invalid repository ID or local directory specified: '/nope'.
        Provide a folder with a config.json.
         [type=value_error, input_value=ArgsKwargs((), {'model': ...}), input_type=ArgsKwargs]
            For further information visit https://errors.pydantic.dev/2.14/v/value_error
        """,
        1,
        "ValidationError: 1 validation error for SpeculativeConfig Value error, Invalid repository ID or local "
        "directory specified: '/nope'. Provide a folder with a config.json.",
    ),
    "vLLM: the kernel kills the engine core": (
        """
        (Worker pid=51) INFO 11-29 23:01:25 [default_loader.py:12] Loading weights
        Traceback (most recent call last):
          File "utils.py", line 1431, in wait_for_engine_startup
        RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': -9}
        (Worker pid=51) ERROR 11-29 23:01:29 [multiproc_executor.py:953] WorkerProc failed to start.
        (Worker pid=51) ERROR 11-29 23:01:29 [multiproc_executor.py:953] Traceback (most recent call last):
        (Worker pid=51) ERROR 11-29 23:01:29 [multiproc_executor.py:953]   File "connection.py", line 384, in _send
        (Worker pid=51) ERROR 11-29 23:01:29 [multiproc_executor.py:953] BrokenPipeError: [Errno 32] Broken pipe
        """,
        1,
        "one of its processes was killed (SIGKILL); if nobody did that, the machine or its control group ran out of "
        "memory (`dmesg` says so)",
    ),
    "vLLM: a port in use": (
        """
        Traceback (most recent call last):
          File "launcher.py", line 348, in create_server_socket
            sock.bind(addr)
        OSError: [Errno 98] Address already in use
        """,
        1,
        "OSError: [Errno 98] Address already in use",
    ),
    "vLLM: the engine core goes away, and nobody says why": (
        """
        (APIServer pid=40) ERROR 11-30 00:41:55 [async_llm.py:906] AsyncLLM output_handler failed.
        (APIServer pid=40) ERROR 11-30 00:41:55 [async_llm.py:906] Traceback (most recent call last):
        (APIServer pid=40) ERROR 11-30 00:41:55 [async_llm.py:906]   File "core_client.py", line 1235, in get_output
        (APIServer pid=40) ERROR 11-30 00:41:55 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: see above
        INFO:     Finished server process [40]
        nanobind: leaked 514 functions!
         - leaked function "create_sin"
         - ... skipped remainder
        """,
        0,
        "it exited with code 0; its log ends with: EngineDeadError: see above",
    ),
    "SGLang: the scheduler fails, the others are ended by SIGQUIT and SIGKILL": (
        """
        [2026-11-29 23:00:20] server_args=ServerArgs(model_path='/m')
        [2026-11-29 23:00:27 TP0] Scheduler hit an exception: Traceback (most recent call last):
          File "/venv/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py", line 6358, in run
            scheduler = Scheduler(server_args, port_args)
          File "/venv/lib/python3.12/site-packages/sglang/srt/model_executor/pool_configurator.py", line 98, in check
            raise RuntimeError(msg)
        RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.3

        [2026-11-29 23:00:27 TP1] Scheduler hit an exception: Traceback (most recent call last):
          File "/venv/lib/python3.12/site-packages/torch/distributed/c10d_logger.py", line 81, in wrapper
            return func(*args, **kwargs)
        torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, remote process exited

        [2026-11-29 23:00:27] Received sigquit from a child process. It usually means the child failed.
        """,
        -9,
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.3",
    ),
    "SGLang: a bare assertion names its place": (
        """
        [2026-11-29 23:00:27] Scheduler hit an exception: Traceback (most recent call last):
          File "/venv/lib/python3.12/site-packages/sglang/srt/models/deepseek.py", line 77, in __init__
            assert num_heads % tp_size == 0
                   ^^^^^^^^^^^^^^^^^^^^^^^^
        AssertionError

        """,
        -9,
        "AssertionError: in deepseek.py line 77: assert num_heads % tp_size == 0",
    ),
    "SGLang: the kernel kills the scheduler": (
        """
        Traceback (most recent call last):
          File "/venv/lib/python3.12/site-packages/sglang/srt/entrypoints/engine.py", line 2024, in _wait
            raise _scheduler_died_error(i, scheduler_procs[i])
        RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), the OS.
        """,
        1,
        "one of its processes was killed (SIGKILL); if nobody did that, the machine or its control group ran out of "
        "memory (`dmesg` says so)",
    ),
    "SGLang: a port in use, as uvicorn says it": (
        """
        INFO:     Started server process [77]
        ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use
        INFO:     Waiting for application shutdown.
        """,
        1,
        "[Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use",
    ),
    "a chain: what the caller says, and what began it": (
        """
        Traceback (most recent call last):
          File "hub.py", line 1, in head
        requests.exceptions.HTTPError: 404 Client Error

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "auto.py", line 2, in from_pretrained
        OSError: no-such/model is not a local folder and is not a valid model identifier
        """,
        1,
        "OSError: no-such/model is not a local folder and is not a valid model identifier "
        "(from HTTPError: 404 Client Error)",
    ),
    "a chain whose last exception repeats the first": (
        """
        Traceback (most recent call last):
          File "a.py", line 1, in a
        torch.AcceleratorError: CUDA error: no kernel image is available

        During handling of the above exception, another exception occurred:

        Traceback (most recent call last):
          File "b.py", line 2, in b
        Exception: Capture cuda graph failed: CUDA error: no kernel image is available
        """,
        1,
        "Exception: Capture cuda graph failed: CUDA error: no kernel image is available",
    ),
    "an exception that was handled comes before the one that was not": (
        """
        (EngineCore pid=41) ERROR 11-29 12:00:00 [plugins.py:40] Failed to load plugin other
        (EngineCore pid=41) ERROR 11-29 12:00:00 [plugins.py:40] Traceback (most recent call last):
        (EngineCore pid=41) ERROR 11-29 12:00:00 [plugins.py:40]   File "plugins.py", line 38, in load
        (EngineCore pid=41) ERROR 11-29 12:00:00 [plugins.py:40] ImportError: cannot import name 'x'
        Traceback (most recent call last):
          File "config.py", line 2, in check
        NotImplementedError: fp8 KV cache with MLA is not there on CPU
        """,
        1,
        "NotImplementedError: fp8 KV cache with MLA is not there on CPU",
    ),
    "torch prints an exception that nobody caught with the rank before it": (
        """
        [rank0]: Traceback (most recent call last):
        [rank0]:   File "run.py", line 2, in <module>
        [rank0]: ValueError: bad rank
        [rank0]:[W1129 23:00:13 ProcessGroupNCCL.cpp:1479] Warning: destroy_process_group() was not called
        """,
        1,
        "ValueError: bad rank",
    ),
    "the environment does not have the engine": (
        "/venv/bin/python: Error while finding module specification for 'vllm.entrypoints.openai.api_server' "
        "(ModuleNotFoundError: No module named 'vllm')",
        1,
        "Error while finding module specification for 'vllm.entrypoints.openai.api_server' "
        "(ModuleNotFoundError: No module named 'vllm')",
    ),
    "a module is missing inside the engine": (
        """
        Traceback (most recent call last):
          File "<frozen runpy>", line 198, in _run_module_as_main
        ModuleNotFoundError: No module named 'sgl_kernel'
        """,
        1,
        "ModuleNotFoundError: No module named 'sgl_kernel'",
    ),
    "a library aborts": (
        """
        terminate called after throwing an instance of 'c10::Error'
          what():  CUDA error: an illegal memory access was encountered
        """,
        -signal.SIGABRT,
        "CUDA error: an illegal memory access was encountered",
    ),
    "killed, with nothing said": (
        "(APIServer pid=40) INFO 11-29 22:59:57 [loader.py:2] Loading weights",
        -signal.SIGKILL,
        "it was killed (SIGKILL); if nobody did that, the machine or its control group ran out of memory (`dmesg` "
        "says so); its log ends with: Loading weights",
    ),
    "a fatal signal": ("Loading weights", -signal.SIGILL, "it was ended by SIGILL; its log ends with: Loading weights"),
    "an exit without a word": ("", 3, "it exited with code 3; its log is empty"),
    "still running": ("\x1b[36m(APIServer pid=4)\x1b[0m step 1\n\n", None, "Its log ends with: step 1"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_reason_is_the_cause_and_not_the_last_line(case: str) -> None:
    log, exit_code, expected = CASES[case]
    assert start_failure(dedent(log), exit_code) == expected


def test_patterns_of_the_backend_come_first() -> None:
    log, exit_code, _ = CASES["vLLM: a port in use"]
    assert start_failure(dedent(log), exit_code, patterns=[r"line (?P<reason>\d+)"]) == "348"
    assert start_failure(dedent(log), exit_code, patterns=["sock.bind"]) == "sock.bind(addr)"


def test_a_long_message_is_cut_at_a_word() -> None:
    log = "Traceback (most recent call last):\n  File 'x'\nValueError: " + "word " * 400
    reason = start_failure(log, 1)
    assert reason.endswith("word ...") and len(reason) < 600


FRAGMENTS = st.sampled_from([line for log, _, _ in CASES.values() for line in dedent(log).splitlines()])


@given(st.lists(FRAGMENTS | st.text(), max_size=12), st.none() | st.integers(-64, 255))
def test_there_is_always_one_line_of_reason(lines: list[str], exit_code: int | None) -> None:
    reason = start_failure("\n".join(lines), exit_code)
    assert reason and "\n" not in reason


@given(st.text())
def test_a_prefix_is_taken_off_once(text: str) -> None:
    stripped = without_prefix(f"(EngineCore pid=41) ERROR 11-29 23:00:27 [core.py:1510] x{text}")
    assert stripped == without_prefix(f"x{text}")
