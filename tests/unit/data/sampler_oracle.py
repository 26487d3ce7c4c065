# Prints what PyTorch's DistributedSampler yields, one line a case:
# "size replicas rank seed epoch shuffle drop_last: i j k".
import random

from torch.utils.data import DistributedSampler

choose = random.Random(20240)
cases = [(n, k, 0, 0, s, d) for n in range(0, 14) for k in range(1, 8) for s in (0, 1) for d in (0, 1)]
for _ in range(300):
    n = choose.choice((choose.randrange(1, 200), choose.randrange(200, 5000)))
    seed = choose.choice((0, 42, choose.randrange(2**31), choose.randrange(2**63)))
    cases.append((n, choose.randrange(1, 17), seed, choose.randrange(200), choose.randrange(2), choose.randrange(2)))
cases.append((60000, 4, 7, 3, 1, 0))
for n, k, seed, epoch, shuffle, drop in cases:
    for rank in range(k):
        sampler = DistributedSampler(range(n), k, rank, bool(shuffle), seed, bool(drop))
        sampler.set_epoch(epoch)
        print(f"{n} {k} {rank} {seed} {epoch} {shuffle} {drop}:", *sampler)
