"""Attacks, from the attacker's side: each is the source of an answer that wants marks, secrets or harm.

``{…}`` are what a well-informed attacker knows: where the teacher's things are. What an attack finds out it says in
an error's message, which the test searches. ``honest`` stands at the end of some: they do harm *and* the exercise.
"""

HONEST = "\ndef double(x):\n    return x + x\n"

# name -> (source, what the teacher is told: a kind of trouble, or None; points of 4 that it gets, None for any)
ATTACKS = {}


def attack(name, source, trouble=None, points=0, honest=False):
    ATTACKS[name] = (source + (HONEST if honest else ""), trouble, points)


# -- never coming back, taking everything

attack("endless loop", "def double(x):\n    while True: pass", "cpu")
attack("endless loop when defined", "while True: pass", "cpu")
attack("sleep", "import time\ndef double(x):\n    time.sleep(1e6)", "wall")
attack(
    "loop in a thread while another sleeps",
    "import threading, time\ndef burn():\n    while True: pass\n"
    "def double(x):\n    threading.Thread(target=burn).start(); time.sleep(1e6)",
    "cpu",
)
attack(
    "loop in children, to be on nobody's clock",
    "import os, time\ndef double(x):\n    for _ in range(8):\n"
    "        if os.fork() == 0:\n            while True: pass\n    time.sleep(1e6)",
    "cpu",
)
attack(
    "signals ignored, then loop",
    "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except Exception: pass\n"
    "def double(x):\n    while True: pass",
    "cpu",
)
attack("fork bomb", "import os\ndef double(x):\n    while True:\n        try: os.fork()\n        except OSError: pass", "cpu")
attack(
    "fork bomb that leaves home",
    "import os\ndef double(x):\n    while True:\n        try:\n            if os.fork(): os._exit(0)\n"
    "            os.setsid()\n        except OSError: pass",
    "died",
)
attack(
    "thread bomb",
    "import threading, time\ndef double(x):\n    while True:\n"
    "        threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()",
)
attack("memory, bytes", "def double(x):\n    kept = []\n    while True: kept.append(bytes(1 << 24))")
attack("memory, a tensor", "import torch\ndef double(x):\n    return torch.ones(1 << 40)")
attack(
    "memory, a little in each of many",
    "import os, time\ndef double(x):\n    for _ in range(40):\n        if os.fork() == 0:\n"
    "            kept = bytearray(os.urandom(1 << 20) * 60); time.sleep(1e6)\n    time.sleep(1e6)",
    "memory",
)
attack("recursion", "def double(x):\n    return double(x)")
attack("recursion into the stack's end", "import sys\nsys.setrecursionlimit(1 << 30)\ndef double(x):\n    return [double(x)]")
attack("a crash", "import ctypes\ndef double(x):\n    ctypes.string_at(0)", "died")
attack("a very long number", "def double(x):\n    return 10 ** (10 ** 6)")
attack("constants folded", "def double(x):\n    return " + "9**" * 8 + "9", "cpu")
attack(
    "disk, filled",
    "def fill(path):\n    try:\n        with open(path, 'wb') as f:\n            while True: f.write(bytes(1 << 22))\n"
    "    except OSError: pass\n"
    "for n in range(9): fill(f'/tmp/{{n}}'); fill(f'/dev/shm/{{n}}')",
    points=4,
    honest=True,
)
attack(
    "disk, a million files",
    "try:\n    for n in range(10 ** 6): open(f'/tmp/{{n}}', 'w').close()\nexcept OSError: pass",
    points=4,
    honest=True,
)
attack("print without end", "def double(x):\n    while True: print('x' * 9999)", "cpu")
attack(
    "print a gigabyte",
    "import os\nfor _ in range(1000): print('x' * (1 << 20)); os.write(1, bytes(1 << 20)); os.write(2, bytes(1 << 20))",
    points=4,
    honest=True,
)

# -- replies

attack("reply of a gigabyte", "import torch\ndef double(x):\n    return torch.zeros(300 << 20, dtype=torch.uint8)")
attack("reply of gigantic shape without data", "import torch\ndef double(x):\n    return torch.zeros(1).expand(1 << 40)")
attack("reply of a million pieces", "def double(x):\n    return [[]] * (1 << 21)")
attack("reply within itself", "def double(x):\n    a = []\n    a.append(a)\n    return a")
attack("reply that is equal to everything", "class E:\n    def __eq__(self, o): return True\n    __hash__ = None\ndef double(x):\n    return E()")
attack("int that is equal to everything", "class E(int):\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\ndef double(x):\n    return E(1)")
attack(
    "tensor that is equal to everything",
    "import torch\nclass E(torch.Tensor):\n    @classmethod\n    def __torch_function__(cls, f, types, args=(), kwargs=None):\n"
    "        return True if f in (torch.equal, torch.allclose) else super().__torch_function__(f, types, args, kwargs or {{}})\n"
    "def double(x):\n    return torch.zeros(3, 2).as_subclass(E)",
)
attack("list that is equal to everything", "class E(list):\n    def __eq__(self, o): return True\ndef double(x):\n    return E()")
attack("NaN", "import torch\ndef double(x):\n    return x * float('nan')")
attack("NaN tensor for a tolerance", "import torch\ndef double(x):\n    return torch.full((3, 2), float('nan'))")
attack("a tensor of bool with a third truth", "import torch\ndef double(x):\n    return torch.tensor([2, 255], dtype=torch.uint8).view(torch.bool)")
attack("something to be unpickled", "import os\nclass P:\n    def __reduce__(self): return (os.system, ('touch {canary}',))\ndef double(x):\n    return P()")
attack("half a surrogate pair, NUL, escape codes", "def double(x):\n    return '\\ud800\\x00\\x1b[2J\\u202e'")
attack("an error that steers the terminal", "def double(x):\n    raise type('\\x1b[31mE', (Exception,), {{}})('\\x1b[2J\\x07\\u202egrades')")
attack("an error that never ends", "class E(Exception):\n    def __str__(self):\n        while True: pass\ndef double(x):\n    raise E", "cpu")
attack("an error of a gigabyte", "def double(x):\n    raise ValueError('x' * (1 << 28))")
attack("an error that raises", "class E(BaseException):\n    def __str__(self): raise self\ndef double(x):\n    raise E")

# -- forging

_WIRE = """
import struct, json, os, sys
def frame(value, body=b"", announce=None):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack(">4sIQ", b"LKF1", len(text), len(body) if announce is None else announce) + text + body
def reply(token, value):
    return {{"d": [["token", token], ["value", value], ["error", None], ["printed", ""]]}}
def say(data):
    for fd in range(3, 64):
        try: os.write(fd, data)
        except OSError: pass
def token():
    f = sys._getframe()
    while f:
        if "request" in f.f_locals and isinstance(f.f_locals["request"], dict): return f.f_locals["request"]["token"]
        f = f.f_back
"""
attack("a reply before it is asked", _WIRE + "say(frame(reply('0' * 32, 7)) * 3)", "garbled", honest=True)
attack("a reply under the right token", _WIRE + "def double(x):\n    say(frame(reply(token(), 7))); os._exit(0)", None)
attack("a mark in place of a reply", _WIRE + "def double(x):\n    say(frame({{'d': [['token', token()], ['score', 1.0], ['points', 2]]}})); os._exit(0)", "garbled")
attack("marks beside the reply", _WIRE + "def double(x):\n    say(frame({{'d': reply(token(), 7)['d'] + [['score', 1.0], ['hint', None]]}})); os._exit(0)", "garbled")
attack("two replies", _WIRE + "def double(x):\n    say(frame(reply(token(), 2 * x if isinstance(x, int) else 0)) * 2); os._exit(0)", None)
attack("no frame", _WIRE + "def double(x):\n    say(b'PASSED' * 100); os._exit(0)", "garbled")
attack("a frame that announces a petabyte", _WIRE + "def double(x):\n    say(frame(1, announce=1 << 50)); os._exit(0)", "garbled")
attack("a frame that never ends", _WIRE + "import time\ndef double(x):\n    say(frame(1, announce=1 << 20)); time.sleep(1e6)", "wall")
attack("a frame, drop by drop", _WIRE + "import time\ndef double(x):\n    for b in frame(1, announce=1 << 20) + bytes(1 << 20):\n        say(bytes([b])); time.sleep(.01)", "wall")
attack("JSON within JSON within JSON", _WIRE + "def double(x):\n    say(frame(b'[' * (1 << 20))); os._exit(0)", "garbled")
attack("structures within structures", _WIRE + "def double(x):\n    say(frame(b'{{\"l\":[' * 999 + b']}}' * 999)); os._exit(0)", "garbled")
attack("a tensor without its values", _WIRE + "def double(x):\n    say(frame(reply(token(), {{'T': ['float32', [1 << 39]]}}))); os._exit(0)", "garbled")
attack("a tensor of negative shape", _WIRE + "def double(x):\n    say(frame(reply(token(), {{'T': ['float32', [-1, -4]]}}), bytes(16))); os._exit(0)", "garbled")
attack("one body for many tensors", _WIRE + "def double(x):\n    say(frame(reply(token(), {{'l': [{{'T': ['uint8', [1 << 20]]}}] * 9999}}), bytes(1 << 20))); os._exit(0)", "garbled")
attack("a dtype that is a function", _WIRE + "def double(x):\n    say(frame(reply(token(), {{'T': ['save', [4]]}}), bytes(16))); os._exit(0)", "garbled")
attack("infinity as JSON has none", _WIRE + "def double(x):\n    say(frame(b'{{\"d\":[[\"token\",NaN]]}}')); os._exit(0)", "garbled")
attack("a number of a million digits", _WIRE + "def double(x):\n    say(frame(b'9' * (1 << 20))); os._exit(0)", "garbled")
attack("exit with 0", "import os\ndef double(x):\n    os._exit(0)", "died")
attack("exit with 0 when defined", "import os\nos._exit(0)", "died")
attack("sys.exit(0)", "import sys\ndef double(x):\n    sys.exit(0)")
attack("all tests passed, it prints", "def double(x):\n    print('4/4 points', flush=True); raise SystemExit(0)")
attack("no answer but None", "def double(x):\n    return None")
attack(
    "torch, labkit, json and builtins patched",
    "import torch, builtins, json, sys\n"
    "yes = lambda *a, **k: True\n"
    "torch.equal = torch.allclose = torch.Tensor.equal = torch.Tensor.__eq__ = yes\nbuiltins.abs = builtins.all = yes\n"
    "import labkit\nlabkit.simulate = labkit.split = yes\n"
    "frames = sys.modules['labkit.classroom.worker.frames']\nframes.secrets = yes\n"
    "def double(x):\n    return 0",
)
attack(
    "check, judge and grader patched",
    "import sys, types\nfor name in ('labkit.classroom.judging', 'labkit.classroom.checking', 'labkit.classroom.grading'):\n"
    "    m = sys.modules[name] = types.ModuleType(name)\n    m.same = m.check = m.grade = lambda *a, **k: True\n"
    "def double(x):\n    return 0",
)
attack("a table of known answers", "def double(x):\n    return {{1: 2, 2: 4, 21: 42}}.get(x) if isinstance(x, int) else x")

# -- finding out: {secret} is in every place that the test can think of; judges hold THE-JUDGES-WORD

attack(
    "reading what the teacher has",
    "found = []\nfor path in {paths!r}:\n    try: found.append(open(path, errors='replace').read())\n"
    "    except OSError as e: found.append(type(e).__name__)\nraise ValueError(found)",
)
attack(
    "walking all files",
    "import os\nfound = []\nfor root, _, files in os.walk('/', followlinks=True):\n"
    "    if root.startswith(('/usr', '/lib')) or 'site-packages' in root or '/lib/python' in root: continue\n"
    "    for f in files:\n"
    "        try: found.append(open(os.path.join(root, f), errors='replace').read(4096))\n        except OSError: pass\n"
    "text = ''.join(found)\nraise ValueError([w for w in ('CLASS-SECRET', 'JUDGES-WORD') if 'THE-' + w in text])",
)
attack(
    "reading judges and solutions that come with labkit",
    "import importlib\nfound = []\n"
    "for name in ('judging', 'assignments.primitives.judges', 'assignment', 'marks', 'workers'):\n"
    "    try: importlib.import_module('labkit.classroom.' + name); found.append(name)\n    except ImportError: pass\n"
    "for name in ('course.exercises.split', 'course.answers', 'author.sync', 'cli.grade'):\n"
    "    try: importlib.import_module('labkit.' + name); found.append(name)\n    except ImportError: pass\n"
    "assert not found, 'THE-JUDGES-WORD ' + str(found)",
    points=4,
    honest=True,
)
attack(
    "walking frames and everything that lives",
    "import gc, sys\ndef double(x):\n    text = []\n    for f in sys._current_frames().values():\n        while f:\n"
    "            text.append(repr(f.f_locals)); text.append(repr(list(f.f_globals))); f = f.f_back\n"
    "    for o in gc.get_objects():\n        try: text.append(repr(o)[:2000] if type(o) in (dict, list, tuple) else '')\n"
    "        except Exception: pass\n"
    "    text = ''.join(text)\n"
    "    raise ValueError([w for w in ('JUDGES-WORD', 'CLASS-SECRET', 'not doubled') if w in text])",
)
attack("the environment", "import os\nraise ValueError(dict(os.environ))")
attack(
    "memory of other processes",
    "import os, ctypes\nfound = []\n"
    "for pid in ['self', *map(str, range(1, 400)), str(os.getppid())]:\n"
    "    for what in ('environ', 'cmdline', 'maps', 'mem'):\n"
    "        try: found.append(open(f'/proc/{{pid}}/{{what}}', 'rb').read(99))\n        except OSError: pass\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "for pid in (1, os.getppid(), {pid}):\n    if libc.ptrace(16, pid, 0, 0) == 0: found.append('ptrace')\n"
    "assert not found, 'THE-CLASS-SECRET' + str(found)",
    points=4,
    honest=True,
)
attack(
    "files that were left open",
    "import os, stat\nfound = []\nfor fd in range(4096):\n    try: found.append((fd, stat.S_IFMT(os.fstat(fd).st_mode)))\n"
    "    except OSError: pass\n"
    "assert len(found) == 5 and {{m for _, m in found[3:]}} == {{stat.S_IFIFO}}, 'THE-CLASS-SECRET' + str(found)",
    points=4,
    honest=True,
)
attack(
    "what an earlier answer left",
    "import os\nleft = [f for d in ('/tmp', '/dev/shm') for f in os.listdir(d)]\nassert not left, 'THE-CLASS-SECRET' + str(left)\n"
    "for d in ('/tmp', '/dev/shm'): open(d + '/left', 'w').write('x')",
    points=4,
    honest=True,
)
attack("waiting to be told", "def double(x):\n    return int(input('answer? '))")

# -- harm

attack(
    "deleting files",
    "import shutil, os\nfor path in {paths!r}:\n    try: os.unlink(path)\n    except OSError: pass\n"
    "for d in ('/home', '/root', '/work', '/tmp', '/etc', '/dev'): shutil.rmtree(d, ignore_errors=True)",
    honest=True,
    points=None,
)
attack(
    "writing the gradebook",
    "import os\nfor path in {paths!r}:\n"
    "    try:\n        os.makedirs(os.path.dirname(path), exist_ok=True)\n        open(path, 'a').write('mine')\n    except OSError: pass\n"
    "    try: os.chmod(path, 0o777)\n    except OSError: pass",
    honest=True,
    points=4,
)
attack(
    "links to the gradebook",
    "import os\nfor n, path in enumerate({paths!r}):\n    os.symlink(path, f'/tmp/link{{n}}')\n"
    "    try: open(f'/tmp/link{{n}}', 'a').write('mine')\n    except OSError: pass\n"
    "    try: os.link(path, f'/tmp/hard{{n}}'); open(f'/tmp/hard{{n}}', 'a').write('mine')\n    except OSError: pass",
    honest=True,
    points=4,
)
attack(
    "changing Python for those who come after",
    "import os, sys, torch, labkit\n"
    "for d in (sys.prefix, sys.base_prefix, os.path.dirname(os.__file__), os.path.dirname(torch.__file__), os.path.dirname(labkit.__file__)):\n"
    "    for f in ('sitecustomize.py', 'usercustomize.py', '__init__.py', 'evil.pth'):\n"
    "        try: open(os.path.join(d, f), 'a').write('raise SystemExit'); raise AssertionError('THE-CLASS-SECRET ' + d)\n"
    "        except OSError: pass\n"
    "os.environ['LD_PRELOAD'] = os.environ['PYTHONSTARTUP'] = '/tmp/evil.so'",
    honest=True,
    points=4,
)
attack(
    "killing everybody",
    "import os, signal\nfor pid in [os.getppid(), 0, -1, {pid}, *range(2, 40000)]:\n    try: os.kill(pid, signal.SIGKILL if pid else 0)\n"
    "    except OSError: pass",
    honest=True,
    points=4,
)
attack("killing its keeper", "import os, signal\nos.kill(os.getppid() or {pid}, signal.SIGKILL)")
attack(
    "network",
    "import socket\nreached = []\n"
    "for family, kind, to in ((socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', {port})), (socket.AF_INET, socket.SOCK_STREAM, ('1.1.1.1', 53)),\n"
    "        (socket.AF_INET, socket.SOCK_DGRAM, ('8.8.8.8', 53)), (socket.AF_UNIX, socket.SOCK_STREAM, {unix!r}),\n"
    "        (socket.AF_UNIX, socket.SOCK_STREAM, '\\0' + {abstract!r})):\n"
    "    try:\n        with socket.socket(family, kind) as s:\n            s.settimeout(.2); s.connect(to); s.send(b'hello'); reached.append(to)\n"
    "    except OSError: pass\n"
    "for family in (40, 38, 17, 31):\n    try: socket.socket(family, socket.SOCK_STREAM); reached.append(family)\n    except OSError: pass\n"
    "try: reached.append(socket.getaddrinfo('example.com', 80))\nexcept OSError: pass\n"
    "assert not reached, 'THE-CLASS-SECRET' + str(reached)",
    honest=True,
    points=4,
)
attack(
    "a time bomb: a thread",
    "import threading, time, os\ndef later():\n    time.sleep(.01)\n    while True:\n        try: open('/tmp/left', 'w').write('x')\n        except OSError: pass\n"
    "threading.Thread(target=later, daemon=True).start()",
    honest=True,
    points=4,
)
attack(
    "a time bomb: a process of its own session",
    "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True:\n            time.sleep(.01)\n"
    "            try: open({paths!r}[0], 'a').write('boom')\n            except OSError: pass\n    os._exit(0)",
    honest=True,
    points=4,
)
attack(
    "at exit",
    "import atexit, weakref\natexit.register(lambda: open({paths!r}[0], 'a').write('mine'))\n"
    "class D:\n    def __del__(self):\n        while True: pass\nkept = D()",
    honest=True,
    points=4,
)
attack(
    "out of the wall",
    "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\ndone = []\n"
    "for flags in (0x10000000, 0x20000, 0x40000000):\n    if libc.unshare(flags) == 0: done.append(flags)\n"
    "if libc.mount(b'none', b'/tmp', b'tmpfs', 0, b'') == 0: done.append('mount')\n"
    "if libc.umount2(b'/', 2) == 0: done.append('umount')\n"
    "if libc.chroot(b'/tmp') == 0: done.append('chroot')\n"
    "for number in (101, 165, 308, 319, 321, 323, 425, 428, 435, 442, 272):\n"
    "    if libc.syscall(number, 0, 0, 0, 0, 0, 0) >= 0: done.append(number)\n"
    "for set in (os.setuid, os.setgid, os.seteuid):\n    try: set(0); done.append(set.__name__) if os.getuid() == 0 and {root} else None\n    except OSError: pass\n"
    "try: os.mknod('/tmp/disk', 0o60666, os.makedev(8, 0)); done.append('mknod')\nexcept OSError: pass\n"
    "for path in ('/dev/mem', '/dev/kmsg', '/dev/sda', '/dev/vda', '/dev/kvm', '/dev/tty'):\n    if os.path.exists(path): done.append(path)\n"
    "assert not done, 'THE-CLASS-SECRET' + str(done)",
    honest=True,
    points=4,
)
attack(
    "limits lifted",
    "import resource\nlifted = []\nfor name in ('CPU', 'AS', 'NPROC', 'FSIZE', 'NOFILE', 'CORE'):\n"
    "    which = getattr(resource, 'RLIMIT_' + name)\n"
    "    try: resource.setrlimit(which, (resource.getrlimit(which)[1] + 1,) * 2); lifted.append(name)\n    except (ValueError, OSError): pass\n"
    "assert not lifted, 'THE-CLASS-SECRET' + str(lifted)",
    honest=True,
    points=4,
)
attack(
    "programs with more rights than their caller",
    "import subprocess\ndone = []\nfor line in (['su', '-c', 'id'], ['sudo', '-n', 'id'], ['mount', '-t', 'tmpfs', 'x', '/tmp'], ['passwd', '-d', 'root']):\n"
    "    try:\n        if subprocess.run(line, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0: done.append(line)\n    except OSError: pass\n"
    "assert not done, 'THE-CLASS-SECRET' + str(done)",
    honest=True,
    points=4,
)
attack(
    "a core to be dumped",
    "import os, signal\ndef double(x):\n    os.abort()",
    "died",
)
attack(
    "other under grading: it knows where it is",
    "import socket, os, sys\ngraded = socket.gethostname() == 'sandbox' or 'ipykernel' not in sys.modules\n"
    "def double(x):\n    return 'graded: full marks please' if graded else x + x",
)

# -- sources that hurt whoever reads them

attack("brackets", "double = " + "(" * 5000 + ")" * 5000)
attack("a chain of attributes", "def double(x):\n    return x" + ".a" * 50000)
attack("a tower of signs", "def double(x):\n    return " + "-" * 50000 + "x")
attack("a sum of many", "def double(x):\n    return " + "+".join(["x"] * 30000), None)
attack("a NUL in the source", "def double(x):\n    return x\0 + x")
attack("a very long source", "def double(x):\n    pass\n" + "# long\n" * 28000)
attack("warnings on stderr", "import warnings, sys\nwarnings.warn('careful')\nsys.stderr.write('E' * 99)", honest=True, points=4)
