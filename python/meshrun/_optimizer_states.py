"""What the optimizers of torch.optim keep by parameter, and their options, as meshrun's C++ library reads them.

The names are PyTorch's own, so a checkpoint of Adam, AdamW or SGD is the same from Python and from C++.
"""

import torch

# By class: the moments, each shaped like its parameter, that a parameter with state has; those that it may have, with the
# option that asks for them; whether it counts its steps.
_KINDS = {
    torch.optim.Adam: (("exp_avg", "exp_avg_sq"), {"max_exp_avg_sq": "amsgrad"}, True),
    torch.optim.AdamW: (("exp_avg", "exp_avg_sq"), {"max_exp_avg_sq": "amsgrad"}, True),
    torch.optim.RAdam: (("exp_avg", "exp_avg_sq"), {}, True),
    torch.optim.Adamax: (("exp_avg", "exp_inf"), {}, True),
    torch.optim.Adagrad: (("sum",), {}, True),
    torch.optim.Adadelta: (("square_avg", "acc_delta"), {}, True),
    torch.optim.RMSprop: (("square_avg",), {"momentum_buffer": "momentum", "grad_avg": "centered"}, True),
    torch.optim.SGD: ((), {"momentum_buffer": "momentum"}, False),
}
# How an optimizer computes, which is the same numbers; two runs may differ in it.
_HOW = {"foreach", "fused", "capturable", "differentiable"}


def _is_number(value):
    return isinstance(value, (bool, int, float)) or (torch.is_tensor(value) and value.numel() == 1)


def _as_before(before, value):
    """The number `value` in the type that the option has, if that can hold it: Adam(weight_decay=0) begins with an int."""
    if isinstance(before, bool):
        return bool(value)
    return int(value) if isinstance(before, int) and value == int(value) else value


class OptimizerStates:
    """Raises NotImplementedError for an optimizer of another class: its states are unknown here."""

    def __init__(self, optimizer):
        kind = type(optimizer)
        if kind not in _KINDS:
            known = ", ".join(each.__name__ for each in _KINDS)
            raise NotImplementedError(
                f"{kind.__module__}.{kind.__qualname__} is not an optimizer whose states are known, which are those of "
                f"torch.optim's {known}: use one of these")
        self._optimizer = optimizer
        self._always, self._asked, self._counts = _KINDS[kind]
        self._group_of = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}

    def kind(self):
        return type(self._optimizer).__name__

    def parameters(self):
        return [list(group["params"]) for group in self._optimizer.param_groups]

    def required_moments(self):
        # An SGD without momentum has none; one with it has it from its first step on.
        return list(self._always) or ["momentum_buffer"]

    def moment_names(self):
        asked = [name for name, option in self._asked.items()
                 if any(group[option] for group in self._optimizer.param_groups)]
        return [*self._always, *asked] or ["momentum_buffer"]

    def counts_steps(self):
        return self._counts

    def token(self):
        """Another number whenever another tensor is a moment."""
        token = 0
        for state in self._optimizer.state.values():
            for value in state.values():
                token = (token * 1000003 + id(value)) & 0x7FFFFFFFFFFFFFFF
        return token

    def parameter_state(self, parameter):
        state = self._optimizer.state.get(parameter) or {}
        moments = {name: state[name] for name in (*self._always, *self._asked) if state.get(name) is not None}
        step = state.get("step")
        return (None if step is None else int(step)), moments

    def set_parameter_state(self, parameter, step, moments):
        known = {"step", *self._always, *self._asked}
        state = {name: value for name, value in self._optimizer.state.get(parameter, {}).items() if name not in known}
        if not moments and not state:
            self._optimizer.state.pop(parameter, None)
            return
        if moments and self._counts:
            group = self._group_of[parameter]
            on_device = group.get("capturable") or group.get("fused")
            state["step"] = torch.tensor(float(step or 0), dtype=torch.float32,
                                         device=parameter.device if on_device else "cpu")
        self._optimizer.state[parameter] = {**state, **moments}

    def group_options(self):
        if sum(len(group["params"]) for group in self._optimizer.param_groups) != len(self._group_of):
            raise RuntimeError(f"the {self.kind()} has got parameters (add_param_group) since it came to meshrun.elastic, which would "
                               "not hand on their states: add them before")
        return [self._options(group) for group in self._optimizer.param_groups]

    def _options(self, group):
        options = {name: float(value) for name, value in group.items() if name not in _HOW and _is_number(value)}
        # Adam's betas have the names that C++ gives them.
        options.update({f"beta{place}": float(value) for place, value in enumerate(group.get("betas", ()), start=1)})
        # What only Python has, and is off, is left out, so that C++ reads the same options.
        for name in self._switches(group):
            if not options[name]:
                del options[name]
        if type(self._optimizer) is torch.optim.AdamW:
            options.pop("decoupled_weight_decay", None)
        return options

    def _switches(self, group):
        switches = ["maximize"]
        if type(self._optimizer) is not torch.optim.AdamW:
            switches.append("decoupled_weight_decay")
        return [name for name in switches if name in group]

    def set_group_options(self, options):
        groups = self._optimizer.param_groups
        if len(groups) != len(options):
            raise ValueError(f"The optimizer has {len(groups)} groups of parameters, and options of {len(options)} are given")
        for group, given in zip(groups, options):
            off = {name: 0.0 for name in self._switches(group)}
            for name, value in {**off, **given}.items():
                if name in ("beta1", "beta2") and "betas" in group:
                    betas = list(group["betas"])
                    betas[int(name[-1]) - 1] = value
                    group["betas"] = tuple(betas)
                elif torch.is_tensor(group.get(name)):
                    group[name].fill_(value)
                else:
                    group[name] = _as_before(group.get(name), value)
