"""Stores: the one of the default group, one over TCP, in a file, and prefixes of them."""

import sys
from datetime import timedelta

import torch.distributed as dist
from script_ends import begin, end


def main():
    rank, size, _ = begin()
    out = {}

    store = dist.distributed_c10d._get_default_store()
    store.set(f"from {rank}", str(rank * rank))
    out["others"] = [int(store.get(f"from {r}")) for r in range(size)]
    store.add("count", rank + 1)
    dist.barrier()
    out["count"] = store.add("count", 0)

    under = dist.PrefixStore("under", store)
    if rank == 0:
        under.set("late", "said by rank 0")
    under.wait(["late"], timedelta(minutes=1))
    out["late"] = under.get("late").decode()
    out["not there"] = store.check(["late"])
    out["swapped"] = under.compare_set(f"swap {rank}", "", "first").decode()
    out["kept"] = under.compare_set(f"swap {rank}", "another", "second").decode()
    under.set("gone", "x")
    dist.barrier()
    if rank == 0:
        out["deleted"] = under.delete_key("gone")

    # A file as the meeting place, its name passed on as an object.
    name = [f"{sys.argv[1]}/store" if rank == 0 else None]
    dist.broadcast_object_list(name)
    files = dist.FileStore(name[0], size)
    files.add("sum", rank)
    files.set(f"here {rank}", "yes")
    files.wait([f"here {r}" for r in range(size)])
    out["file"] = files.add("sum", 0)
    dist.barrier()

    # A store of one's own on a free port.
    master = (
        dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False) if rank == 0 else None
    )
    port = [master.port if rank == 0 else None]
    dist.broadcast_object_list(port)
    client = master if rank == 0 else dist.TCPStore("127.0.0.1", port[0], size, is_master=False)
    client.append("letters", "abcd"[rank % 4])
    dist.barrier()
    out["letters"] = sorted(client.get("letters").decode())
    client.multi_set([f"a{rank}", f"b{rank}"], ["1", str(rank)])
    dist.barrier()
    out["several"] = [value.decode() for value in client.multi_get([f"b{r}" for r in range(size)])]
    dist.barrier()
    dist.barrier()  # rank 0 keeps the store, and goes last

    local = dist.HashStore()
    local.set("mine", str(rank))
    out["hash"] = int(local.get("mine"))
    end(out)


if __name__ == "__main__":
    main()
