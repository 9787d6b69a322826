"""The public names, each with the module that it is loaded from.

Type checkers and editors read this file, and so does ``__init__.py`` when the first name is used. It takes every
line ``from .module import Name as Name`` for a public name.
"""

from labkit_diagnose import Diagnosis as Diagnosis
from labkit_diagnose import Finding as Finding
from labkit_diagnose import GpuMemory as GpuMemory
from labkit_diagnose import diagnose as diagnose
from labkit_ranks.calls.wait_graph import Wait as Wait
from labkit_ranks.calls.wait_graph import WaitForGraph as WaitForGraph
from labkit_ranks.explorers import BucketExplorer as BucketExplorer
from labkit_ranks.explorers import ContextExplorer as ContextExplorer
from labkit_ranks.explorers import ExpertExplorer as ExpertExplorer
from labkit_ranks.explorers import MeshExplorer as MeshExplorer
from labkit_ranks.explorers import PipelineExplorer as PipelineExplorer
from labkit_ranks.explorers import PlanExplorer as PlanExplorer
from labkit_ranks.explorers import RecomputeExplorer as RecomputeExplorer
from labkit_ranks.explorers import ShardingExplorer as ShardingExplorer
from labkit_ranks.explorers import SlicesExplorer as SlicesExplorer
from labkit_ranks.explorers import WorldExplorer as WorldExplorer
from labkit_ranks.notebook.session import Session as Session
from labkit_ranks.notebook.session import ranks as ranks
from labkit_ranks.parity.judging import ParityLayout as ParityLayout
from labkit_ranks.parity.parity import Parity as Parity
from labkit_ranks.parity.parity import parity as parity
from labkit_ranks.pictures.wait_graphs import draw_waits as draw_waits
from labkit_ranks.planning.memory_account import RankPlan as RankPlan
from labkit_ranks.planning.script_plan import ScriptPlan as ScriptPlan
from labkit_ranks.planning.script_plan import plan as plan
from labkit_ranks.plans.heat import HeatMaps as HeatMaps
from labkit_ranks.plans.pipeline import Pipeline as Pipeline
from labkit_ranks.plans.pipeline import Task as Task
from labkit_ranks.plans.pipeline import pipeline as pipeline
from simgpu.machine import Machine as Machine
from simgpu.simulation import RealGpus as RealGpus
from simgpu.simulation import simulate as simulate
from simgpu.simulation import use_gpus as use_gpus
from simgpu.state.gpu import Gpu as Gpu
from simgpu.state.host import OutOfHostMemory as OutOfHostMemory

from .base.language import get_language as get_language
from .base.language import set_language as set_language
from .cost import PROFILES as PROFILES
from .cost import Hardware as Hardware
from .cost import Step as Step
from .cost import Workload as Workload
from .cost.hardware import Accelerator as Accelerator
from .cost.plan import Forecast as Forecast
from .cost.plan import forecast as forecast
from .cost.search import Plans as Plans
from .cost.settings import Plan as Plan
from .cost.sizes import Sizes as Sizes
from .engine import DataParallel as DataParallel
from .engine import data_parallel as data_parallel
from .engine import gather as gather
from .engine import parallel_apply as parallel_apply
from .engine import replicate as replicate
from .engine import scatter as scatter
from .explore.explorer import Explorer as Explorer
from .explore.explorers import CallExplorer as CallExplorer
from .explore.explorers import MemoryExplorer as MemoryExplorer
from .explore.explorers import RingExplorer as RingExplorer
from .explore.explorers import ShapesExplorer as ShapesExplorer
from .explore.explorers import SplitExplorer as SplitExplorer
from .explore.explorers import TimelineExplorer as TimelineExplorer
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
from .view.draw import draw_shapes as draw_shapes
from .view.draw import draw_split as draw_split
from .view.draw import draw_timeline as draw_timeline

__version__: str
__all__: list[str]
_ENTRIES: tuple[str, ...]

def load_ipython_extension(shell: object) -> None: ...
