"""The processes that train and measure together: one, several started here, or several that torchrun started."""

import logging
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fewtag.errors import InputError
from fewtag.pictures.prefetch import usable_cores

if TYPE_CHECKING:
    from lightning_fabric import Fabric

ACCELERATORS = ("auto", "cpu", "gpu")
PRECISIONS = ("auto", "32-true", "bf16-mixed")
LEFT_ALONE = 75
"""The exit code of a process whose fellow is gone."""


def is_first() -> bool:
    """Whether this is the process that speaks."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK", "0") == "0"


def is_left_alone(error: RuntimeError) -> bool:
    """Whether the error says no more than that another process is gone, which said itself why."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "Connection" in str(error)


def open_fabric(accelerator: str, devices: int, precision: str) -> "Fabric":
    """Joins the processes that work together; where they are not started yet, starts them and ends with them."""
    import torch

    for option, value, known in (
        ("--accelerator", accelerator, ACCELERATORS),
        ("--precision", precision, PRECISIONS),
    ):
        if value not in known:
            raise InputError(f"{option} {value} is not offered; choose one of {', '.join(known)}")
    gpu = accelerator != "cpu" and torch.cuda.is_available()
    if accelerator == "gpu" and not gpu:
        raise InputError("--accelerator gpu, but torch sees no GPU here; use --accelerator cpu")
    started = torch.distributed.is_torchelastic_launched()
    here, machines = _places(devices) if started else (devices, 1)
    if gpu and here > torch.cuda.device_count():
        raise InputError(
            f"{here} processes need a GPU each, but torch sees {torch.cuda.device_count()} here; "
            "ask for fewer --devices, or use --accelerator cpu"
        )
    if devices > 1 and not started:
        _run_in_processes(devices)
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    if started:
        _settle()
    if gpu:
        torch.set_float32_matmul_precision("high")
    elif here > 1:
        # torchrun says OMP_NUM_THREADS=1 to each, whatever the cores
        torch.set_num_threads(max(1, usable_cores() // here))
    fabric = Fabric(
        accelerator="cuda" if gpu else "cpu",
        devices=here,
        num_nodes=machines,
        # one process may read pictures for hours while the others wait; and RunningStatistics sees to the buffers
        strategy=DDPStrategy(broadcast_buffers=False, timeout=timedelta(days=30)) if started else "auto",
        precision=_precision(precision, gpu),
    )
    fabric.launch()
    return fabric


def _places(devices: int) -> tuple[int, int]:
    """How many processes torchrun started on this machine, and on how many machines."""
    here, all_of_them = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    if devices not in (1, here):
        raise InputError(f"--devices is {devices}, but torchrun started {here} processes here; leave --devices out")
    if all_of_them % here:
        raise InputError(
            f"torchrun started {here} of {all_of_them} processes on this machine; "
            "start as many on each: the same --nproc-per-node"
        )
    return here, all_of_them // here


def _precision(named: str, gpu: bool) -> Any:
    return ("bf16-mixed" if gpu else "32-true") if named == "auto" else named


def _settle() -> None:
    """Makes this one of several processes: quiet, and gone when the one that started it is."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
    if not is_first():
        warnings.simplefilter("ignore")
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)  # else it would go on by itself, beside the same command started again


def _run_in_processes(count: int) -> NoReturn:
    """Runs this very command in so many processes, as `torchrun` does, and ends as they end."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.ERROR)  # torchrun's reports of a process that said itself why it failed
    # a console script has no current folder on its path, and must not get one: a file there may be named like a module
    path = [] if Path(sys.argv[0]).name == "__main__.py" else ["-P"]
    with tempfile.TemporaryDirectory() as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            run_id=f"fewtag-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
        )
        try:
            elastic_launch(config, sys.executable)(*path, "-m", "fewtag", *sys.argv[1:])
        except ChildFailedError as error:
            codes = {failure.exitcode for failure in error.failures.values()}
            # who was ended because of another, or left because the other was gone, is not the reason
            raise SystemExit(_tell(min(codes - {-signal.SIGTERM, LEFT_ALONE} or codes))) from None
        except SignalException as error:
            raise SystemExit(128 + error.sigval) from None
    raise SystemExit(0)


def _tell(code: int) -> int:
    """The exit code for one of a process; of one that could not say anything itself, says that it was ended."""
    if code >= 0:
        return code
    name = signal.Signals(-code).name
    print(f"fewtag: a process was ended by {name}; the same command goes on from where it stood", file=sys.stderr)
    return 1
