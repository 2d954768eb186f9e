"""The memory of all recordings follows from a trial of the largest and the smallest."""

from engine.memory.recordings import recordings_bytes

MIB = 1 << 20


class MeasuredMemory:
    """A device whose readings are given."""

    def __init__(self, *readings):
        self.readings = list(readings)

    def used(self):
        return self.readings.pop(0)

    def peak_of(self, call):
        call()
        return 7 * MIB


def test_the_largest_counts_once_and_the_smallest_for_each_other_recording():
    memory = MeasuredMemory(1000 * MIB, 1400 * MIB, 1420 * MIB)
    assert recordings_bytes(iter([None, None]), 11, memory) == (400 + 10 * 20) * MIB


def test_memory_that_others_free_meanwhile_is_no_gain():
    memory = MeasuredMemory(1000 * MIB, 1400 * MIB, 900 * MIB)
    assert recordings_bytes(iter([None, None]), 11, memory) == 400 * MIB
    memory = MeasuredMemory(1000 * MIB, 900 * MIB, 900 * MIB)
    assert recordings_bytes(iter([None, None]), 11, memory) == 0
