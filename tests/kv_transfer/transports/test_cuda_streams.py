"""A stream has one user at a time."""

import torch

from kv_transfer.transports.cuda_streams import CudaStreams

DEVICE, OTHER = torch.device("cuda", 0), torch.device("cuda", 1)


class StandInStream:
    def __init__(self, device):
        self.device = device
        self.idle = True

    def query(self):
        if self.idle is None:
            raise RuntimeError("the device failed")
        return self.idle


def test_a_stream_is_used_again_only_after_it_was_given_back():
    streams = CudaStreams(StandInStream)
    many = [streams.take(DEVICE) for _ in range(100)]
    assert len({id(stream) for stream in many}) == 100
    streams.give(many[7])
    assert streams.take(OTHER) not in many
    assert streams.take(DEVICE) is many[7]
    assert streams.take(DEVICE) not in many


def test_a_stream_with_work_that_hangs_is_never_used_again():
    streams = CudaStreams(StandInStream)
    for idle in (False, None):
        stream = streams.take(DEVICE)
        stream.idle = idle
        streams.give(stream)
        assert streams.take(DEVICE) is not stream
