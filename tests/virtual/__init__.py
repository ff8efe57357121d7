"""A virtual accelerator: devices, streams and events over CPU tensors, which reports every hazard.

Operations run at once, so the numbers are always right; what is checked is whether they would be on
a device that runs each stream on its own time:

    clocks.py       who is known to have done what: vector clocks
    hazards.py      what can be wrong
    memory.py       who read and wrote which block of memory, and when it may be used again
    operations.py   which operands a torch operation reads and writes
    threads.py      one clock per host thread, merged where threads hand things over
    names.py        ``tensor.device`` and ``.to("cpu")`` for virtual devices
    accelerator.py  the devices, as the `Streams` that lanes are given
    faults.py       the same, leaving out one call: for mutation tests
"""
