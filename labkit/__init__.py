"""Learn, debug and teach multi-GPU data parallelism in PyTorch, on any machine.

Names are loaded on first use, so that ``import labkit`` costs next to nothing.
"""

from .base import display

__version__ = "0.1.0"

# The public names twice, and a test holds both equal: as imports for type checkers and editors, which must not see
# the module's __getattr__ (for them every name would exist), and as what is loaded on first use.
TYPE_CHECKING = False  # type checkers take it for true by its name; typing's own would cost 3 ms
if TYPE_CHECKING:
    from .base.language import get_language as get_language
    from .base.language import set_language as set_language
    from .cost import PROFILES as PROFILES
    from .cost import Hardware as Hardware
    from .cost import Scaling as Scaling
    from .cost import Step as Step
    from .cost import Workload as Workload
    from .cost import predict_scaling as predict_scaling
    from .diagnosis import Diagnosis as Diagnosis
    from .diagnosis import Finding as Finding
    from .diagnosis import GpuMemory as GpuMemory
    from .diagnosis import diagnose as diagnose
    from .distributed.notebook.session import Session as Session
    from .distributed.notebook.session import ranks as ranks
    from .engine import DataParallel as DataParallel
    from .engine import data_parallel as data_parallel
    from .engine import gather as gather
    from .engine import parallel_apply as parallel_apply
    from .engine import replicate as replicate
    from .engine import scatter as scatter
    from .explore.explorer import Explorer as Explorer
    from .explore.explorers import CallExplorer as CallExplorer
    from .explore.explorers import MemoryExplorer as MemoryExplorer
    from .explore.explorers import RaceExplorer as RaceExplorer
    from .explore.explorers import RingExplorer as RingExplorer
    from .explore.explorers import ScalingExplorer as ScalingExplorer
    from .explore.explorers import ShapesExplorer as ShapesExplorer
    from .explore.explorers import SplitExplorer as SplitExplorer
    from .explore.explorers import StarExplorer as StarExplorer
    from .explore.explorers import TimelineExplorer as TimelineExplorer
    from .machine import Gpu as Gpu
    from .machine import Machine as Machine
    from .machine import OutOfHostMemory as OutOfHostMemory
    from .machine import RealGpus as RealGpus
    from .machine import simulate as simulate
    from .machine import use_gpus as use_gpus
    from .plans.batches import Batches as Batches
    from .plans.batches import batches as batches
    from .plans.footprint import Footprint as Footprint
    from .plans.footprint import Footprints as Footprints
    from .plans.footprint import data_parallel_memory as data_parallel_memory
    from .plans.placement import Placement as Placement
    from .plans.placement import placement as placement
    from .plans.ring import Ring as Ring
    from .plans.ring import Send as Send
    from .plans.ring import Star as Star
    from .plans.ring import ring_all_reduce as ring_all_reduce
    from .plans.ring import star_all_reduce as star_all_reduce
    from .plans.split import Piece as Piece
    from .plans.split import Split as Split
    from .plans.split import split as split
    from .trace.events import Call as Call
    from .trace.events import Event as Event
    from .trace.events import Meeting as Meeting
    from .trace.events import Trace as Trace
    from .trace.memory import MemorySample as MemorySample
    from .trace.memory import MemoryTimeline as MemoryTimeline
    from .trace.recording import record as record
    from .trace.waits import Wait as Wait
    from .trace.waits import WaitForGraph as WaitForGraph
    from .turns.baton import Deadlock as Deadlock
    from .view.draw import draw_all_reduce as draw_all_reduce
    from .view.draw import draw_batches as draw_batches
    from .view.draw import draw_flow as draw_flow
    from .view.draw import draw_memory as draw_memory
    from .view.draw import draw_placement as draw_placement
    from .view.draw import draw_scaling as draw_scaling
    from .view.draw import draw_shapes as draw_shapes
    from .view.draw import draw_split as draw_split
    from .view.draw import draw_timeline as draw_timeline
    from .view.draw import draw_waits as draw_waits
else:
    import sys
    from importlib import import_module

    _ROOMS = {
        "base.language": "get_language set_language",
        "turns.baton": "Deadlock",
        "plans.split": "Piece Split split",
        "plans.batches": "Batches batches",
        "plans.placement": "Placement placement",
        "plans.ring": "Ring Send Star ring_all_reduce star_all_reduce",
        "plans.footprint": "Footprint Footprints data_parallel_memory",
        "cost": "PROFILES Hardware Scaling Step Workload predict_scaling",
        "distributed.notebook.session": "Session ranks",
        "trace.events": "Call Event Meeting Trace",
        "trace.memory": "MemorySample MemoryTimeline",
        "trace.waits": "Wait WaitForGraph",
        "trace.recording": "record",
        "machine": "Gpu Machine OutOfHostMemory RealGpus simulate use_gpus",
        "engine": "DataParallel data_parallel gather parallel_apply replicate scatter",
        "view.draw": "draw_all_reduce draw_batches draw_flow draw_memory draw_placement draw_scaling "
        "draw_shapes draw_split draw_timeline draw_waits",
        "explore.explorers": "CallExplorer MemoryExplorer RaceExplorer RingExplorer ScalingExplorer "
        "ShapesExplorer SplitExplorer StarExplorer TimelineExplorer",
        "explore.explorer": "Explorer",
        "diagnosis": "Diagnosis Finding GpuMemory diagnose",
    }
    _ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names.split()}

    __all__ = ["__version__", *_ROOM_OF]

    display.svg_of = lambda data: import_module(f"{__name__}.view.draw").svg_of(data)

    def __getattr__(name: str) -> object:
        if name not in _ROOM_OF:
            raise AttributeError(f"module 'labkit' has no attribute {name!r}")
        try:
            room = import_module(f"{__name__}.{_ROOM_OF[name]}")
        except ModuleNotFoundError as error:
            from .base.extras import explained

            raise explained(error) from None
        value = getattr(room, name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted(__all__)

    def load_ipython_extension(shell: object) -> None:
        """``%load_ext labkit``: the magic ``%%ranks``. In a notebook ``import labkit`` does it, too."""
        import_module(f"{__name__}.distributed.notebook.magic").load(shell)

    def _greet() -> None:
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        if shell is not None:
            load_ipython_extension(shell)

    _greet()
