"""Networks of scientific machine learning as torch.nn.Modules."""

import torch
from torch import Tensor, nn

__all__ = ["DistributedAFNO", "DistributedAFNONet", "FullyConnected", "FullyConnectedLayer"]


def __getattr__(name):
    # They need the extension; the others are PyTorch's alone.
    if name not in ("DistributedAFNO", "DistributedAFNONet"):
        raise AttributeError(f"module 'meshrun.models' has no attribute {name!r}")
    from meshrun.distributed import afno

    return getattr(afno, name)


_ACTIVATIONS = {
    "celu": nn.functional.celu, "elu": nn.functional.elu, "gelu": nn.functional.gelu, "hardtanh": nn.functional.hardtanh,
    "identity": lambda x: x, "leaky_relu": nn.functional.leaky_relu, "logsigmoid": nn.functional.logsigmoid,
    "mish": nn.functional.mish, "relu": nn.functional.relu, "relu6": nn.functional.relu6, "selu": nn.functional.selu,
    "sigmoid": torch.sigmoid, "silu": nn.functional.silu, "softplus": nn.functional.softplus,
    "softsign": nn.functional.softsign, "tanh": torch.tanh, "tanhshrink": nn.functional.tanhshrink,
}


class FullyConnectedLayer(nn.Module):
    """y = activation(scale * (x W^T + b)). Weights are Xavier uniform, the bias is zero."""

    def __init__(self, in_features: int, out_features: int, activation_fn: str = "identity") -> None:
        super().__init__()
        if activation_fn not in _ACTIVATIONS:
            raise ValueError(f"no activation is called {activation_fn!r}; there are: {', '.join(_ACTIVATIONS)}")
        self.activation_fn = activation_fn
        self.linear = nn.Linear(in_features, out_features)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.linear.bias, 0)
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, x: Tensor, scale=None) -> Tensor:
        y = self.linear(x)
        return _ACTIVATIONS[self.activation_fn](y if scale is None else scale * y)


class FullyConnected(nn.Module):
    """A multi-layer perceptron: [batch..., in_features] to [batch..., out_features].

    layer_size: features of each of the num_layers hidden layers, which one linear layer without activation follows.
    activation_fn: a name, or one for each hidden layer, of which the last one serves all that follow. skip_connections: the
    output of hidden layer i - 2 is added to that of layer i, for i = 2, 4, ... adaptive_activations: one learnt factor,
    initially 1, scales the input of every activation.

    Parameters have the names and the initial values of the C++ class meshrun::FullyConnected and of PhysicsNeMo's, so each
    reads the others' state dictionaries (with adaptive activations the C++ class's alone). Raises ValueError for arguments and
    inputs that do not fit. Source: physicsnemo.models.mlp.fully_connected.FullyConnected, except weight_norm and weight_fact.
    """

    def __init__(self, in_features: int = 512, layer_size: int = 512, out_features: int = 512, num_layers: int = 6,
                 activation_fn="silu", skip_connections: bool = False, adaptive_activations: bool = False,
                 weight_norm: bool = False, weight_fact: bool = False) -> None:
        super().__init__()
        if weight_norm or weight_fact:
            raise ValueError("FullyConnected: weight_norm and weight_fact are not offered: use torch.nn.utils.parametrizations")
        sizes = {"in_features": in_features, "layer_size": layer_size, "out_features": out_features, "num_layers": num_layers}
        if min(sizes.values()) < 1:
            raise ValueError(f"FullyConnected: sizes must be positive, got {', '.join(f'{k} {v}' for k, v in sizes.items())}")
        names = [activation_fn] if isinstance(activation_fn, str) else list(activation_fn)
        if not names:
            raise ValueError("FullyConnected: activation_fn must name at least one activation")
        self.in_features, self.skip_connections = in_features, skip_connections
        if adaptive_activations:
            self.activation_par = nn.Parameter(torch.ones(1))
        else:
            self.register_parameter("activation_par", None)
        widths = [in_features] + [layer_size] * num_layers
        self.layers = nn.ModuleList(FullyConnectedLayer(widths[i], layer_size, names[min(i, len(names) - 1)])
                                    for i in range(num_layers))
        self.final_layer = FullyConnectedLayer(layer_size, out_features)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 2 or x.shape[-1] != self.in_features:
            raise ValueError(f"FullyConnected: expected an input of shape [batch..., {self.in_features}], got {list(x.shape)}")
        skip = None
        for i, layer in enumerate(self.layers):
            x = layer(x, self.activation_par)
            if self.skip_connections and i % 2 == 0:
                x, skip = (x if skip is None else x + skip), x
        return self.final_layer(x)
