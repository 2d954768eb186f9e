"""What all choices of a request share, on the wire and at a replica."""

from __future__ import annotations

import pytest

from engine.errors import Internal
from engine.types.sampling_params import SamplingParams
from protos.decode_pb2 import DecodeRequest
from protos.prefill_pb2 import PrefillRequest
from protos.shared_prompt import SharedPrompt, sequence_from_proto

SAMPLING = SamplingParams(max_tokens=4, seed=1, stop=("a",), logit_bias={3: -1.0})


def test_a_prompt_survives_and_is_encoded_once():
    prompt = SharedPrompt((5, 6), SAMPLING)
    found = SharedPrompt.read(prompt.encoded)
    assert (found.ids, found.sampling) == ((5, 6), SAMPLING)
    assert prompt.encoded is prompt.encoded
    assert found != prompt


@pytest.mark.parametrize("window_s", [None, 0.02])
def test_a_batch_window_is_that_of_the_request_or_none(window_s):
    prompt = SharedPrompt((5,), SAMPLING)
    request = DecodeRequest(transfer="a.0", batch_window_s=window_s)
    assert sequence_from_proto(request, prompt).batch_window_s == window_s
    assert sequence_from_proto(PrefillRequest(transfer="a.0"), prompt).batch_window_s is None


def test_output_and_kv_with_a_first_token_are_not_both_taken():
    prompt = SharedPrompt((5, 6), SAMPLING)
    request = DecodeRequest(transfer="a.0", output_ids=[7])
    with pytest.raises(Internal, match=r"a\.0"):
        sequence_from_proto(request, prompt)
    request.local_prefill = True
    assert sequence_from_proto(request, prompt).tokens == [5, 6, 7]
