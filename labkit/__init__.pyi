"""The public names, each with the module that it is loaded from.

Type checkers and editors read this file, and so does ``__init__.py`` when the first name is used. It takes every
line ``from .module import Name as Name`` for a public name.
"""

from .base.language import get_language as get_language
from .base.language import set_language as set_language
from .cost import PROFILES as PROFILES
from .cost import Hardware as Hardware
from .cost import Scaling as Scaling
from .cost import Step as Step
from .cost import Workload as Workload
from .cost import predict_scaling as predict_scaling
from .cost.hardware import Accelerator as Accelerator
from .cost.plan import Forecast as Forecast
from .cost.plan import forecast as forecast
from .cost.search import Plans as Plans
from .cost.settings import Plan as Plan
from .cost.sizes import Sizes as Sizes
from .diagnosis import Diagnosis as Diagnosis
from .diagnosis import Finding as Finding
from .diagnosis import GpuMemory as GpuMemory
from .diagnosis import diagnose as diagnose
from .distributed.calls.waits import Wait as Wait
from .distributed.calls.waits import WaitForGraph as WaitForGraph
from .distributed.explorers import BucketExplorer as BucketExplorer
from .distributed.explorers import MeshExplorer as MeshExplorer
from .distributed.explorers import PipelineExplorer as PipelineExplorer
from .distributed.explorers import PlanExplorer as PlanExplorer
from .distributed.explorers import ShardingExplorer as ShardingExplorer
from .distributed.explorers import SlicesExplorer as SlicesExplorer
from .distributed.explorers import WorldExplorer as WorldExplorer
from .distributed.notebook.session import Session as Session
from .distributed.notebook.session import ranks as ranks
from .distributed.pictures.wait_graphs import draw_waits as draw_waits
from .distributed.planning.measuring import RankPlan as RankPlan
from .distributed.planning.planned import ScriptPlan as ScriptPlan
from .distributed.planning.planned import plan as plan
from .distributed.plans.heat import HeatMaps as HeatMaps
from .distributed.plans.pipeline import Pipeline as Pipeline
from .distributed.plans.pipeline import Task as Task
from .distributed.plans.pipeline import pipeline as pipeline
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
from .trace.curves import Curves as Curves
from .trace.events import Event as Event
from .trace.events import Meeting as Meeting
from .trace.memory import MemorySample as MemorySample
from .trace.memory import MemoryTimeline as MemoryTimeline
from .trace.recording import record as record
from .trace.trace import Call as Call
from .trace.trace import Trace as Trace
from .turns import Deadlock as Deadlock
from .view.draw import draw_all_reduce as draw_all_reduce
from .view.draw import draw_batches as draw_batches
from .view.draw import draw_flow as draw_flow
from .view.draw import draw_memory as draw_memory
from .view.draw import draw_placement as draw_placement
from .view.draw import draw_scaling as draw_scaling
from .view.draw import draw_shapes as draw_shapes
from .view.draw import draw_split as draw_split
from .view.draw import draw_timeline as draw_timeline

__version__: str
__all__: list[str]
_ENTRIES: tuple[str, ...]

def load_ipython_extension(shell: object) -> None: ...
