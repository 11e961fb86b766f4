"""An observed evaluation of torch's own encoder takes the path that the unobserved one takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.recording import recording


def encoder(depth=2):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).eval()


def evaluated(model, *, compiled=False):
    torch.manual_seed(1)
    x, padded = torch.randn(8, 33, 64), torch.zeros(8, 33, dtype=torch.bool)
    padded[:, 20:] = True
    call = torch.compile(model, backend="eager") if compiled else model
    with torch.no_grad():
        return call(x), call(x, src_key_padding_mask=padded)


def observed(model, tensors="*", **how):
    with recording() as run:
        run.session.watch(model, tensors=tensors)
        found = evaluated(model, **how)
    return found, {record.name for record in run.sink.records}


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_an_observed_evaluation_of_torchs_encoder_is_the_unobserved_one_bit_for_bit(compiled):
    torch.compiler.reset()
    alone = evaluated(encoder(), compiled=compiled)
    torch.compiler.reset()
    found, names = observed(encoder(), compiled=compiled)
    assert all(map(torch.equal, alone, found))
    assert {"layers.0", "layers.1", "output"} <= names


def test_a_layer_that_is_the_model_or_has_a_hook_of_the_users_goes_its_own_way():
    alone = encoder().layers[0]
    assert all(map(torch.equal, evaluated(alone), observed(encoder().layers[0])[0]))
    seen = []

    def hooked():
        model = encoder()
        model.layers[1].linear1.register_forward_hook(lambda *_of_call: seen.append(1))
        return model

    without, (found, names) = evaluated(hooked()), observed(hooked())
    assert all(map(torch.equal, without, found))
    assert len(seen) == 4
    assert "layers.1.linear1" in names
    assert "layers.0.linear1" not in names


def test_the_modules_of_a_watched_layer_are_what_they_are_to_anybody_else():
    model = encoder().layers[0]
    with recording() as run:
        run.session.watch(model)
        assert list(model.modules()) == [one for _, one in model.named_modules()]
        assert all(isinstance(one, nn.Module) for one in model.modules())
