"""All private names of torch that this project uses, and nothing else.

torch documents less than an observer needs: no public name tells whether a backward runs, or
registers a hook that is not copied and saved with its module. Each private name is a *door*, listed
here and nowhere else, with its purpose, the version of torch that introduced it, and the loss where
torch has moved it. What is lost is a feature, with a warning, and never a bit of the training.

    door            the class of doors; the table of all doors; warnings of a loss
    backward        the backward that runs, and the nodes of its graph
    dispatch_modes  modes, functorch, torch.jit.trace, autocast
    tensors         hooks, versions, memory and parts of tensors
    modules         parts and hooks of modules
    optimizers      hooks of optimizers, the loss scale of GradScaler
    frames          code objects by which frames are recognized
    operators       classes and schemas of operators
    dynamo          how dynamo treats our functions, and the code that it is tracing
    compiled_code   the code that dynamo has compiled, and compiled autograd
    compilers       graphs of compilers
    pytrees         nested lists, tuples and dicts

A name counts as private if it begins with an underscore, or if torch documents it nowhere.
"""

from __future__ import annotations

from anchorlib.torch_private.backward import (
    CHECKPOINT_RECOMPUTES,
    ENGINE_CALL,
    RAW_SAVED,
    SAVED,
    NodeContext,
    compiled_outputs,
    current_node,
    engine_code,
    graph_task,
    is_passed_on,
    leaf_of,
    next_sequence,
    pass_on,
    passed_on,
    saved_getters,
    sequence_number,
)
from anchorlib.torch_private.compiled_code import (
    backward_of_compiled_autograd,
    compile_hooks_of,
    count_compiled,
    emulates_precision,
    forget_compiled,
    hide_compiled_autograd,
    show_compiled_autograd,
)
from anchorlib.torch_private.compilers import (
    AOT_ENTRY,
    AOT_LOGS,
    AOT_MODULE,
    AOT_TEXTS,
    CACHES,
    GRAPH_DOORS,
    INDUCTORS_DEBUG,
    INDUCTORS_OUTPUT,
    inductors_graph,
    is_in_torch,
    loggers_of,
    node_lines,
)
from anchorlib.torch_private.dispatch_modes import (
    DispatchMode,
    dispatch_mode_at,
    dispatch_modes,
    function_modes,
    inside_functorch,
    is_any_autocast,
    is_tracing,
    is_wrapped,
    without_modes,
)
from anchorlib.torch_private.door import (
    DOORS,
    AffectedPrograms,
    tell_moved,
)
from anchorlib.torch_private.dynamo import (
    CAN_SKIP,
    CompileContext,
    enclosing_operators,
    mark_constant,
    mark_disabled,
    skip_frames_of,
    tell_marks,
    traced_functions,
    tracing_backend,
)
from anchorlib.torch_private.frames import (
    call_code,
    inner_call_code,
    profiled_step_code,
)
from anchorlib.torch_private.modules import (
    CHILDREN,
    FORWARD_HOOKS,
    WRAPPER_LINKS,
    children_of,
    forward_hook_dicts,
    forward_pre_hook_dicts,
    held_by_modules,
    is_wrapper_link,
    own_buffers,
    own_parameters,
    wrap_scripting,
)
from anchorlib.torch_private.operators import (
    Overload,
    schema_of,
    wrap_operator_call,
)
from anchorlib.torch_private.optimizers import (
    global_step_hooks,
    scale_of,
    step_pre_hooks,
)
from anchorlib.torch_private.pytrees import (
    TreeSpec,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
)
from anchorlib.torch_private.tensors import (
    NO_LEAF_HOOKS,
    MemoryRef,
    StorageRef,
    data_address,
    dlpack_exchange,
    has_local_tensor,
    hooks_are_known,
    hooks_of,
    hooks_of_new,
    local_tensor,
    register_hook,
    sparse_parts,
    storage_key,
    version,
)

__all__ = [
    "AOT_ENTRY",
    "AOT_LOGS",
    "AOT_MODULE",
    "AOT_TEXTS",
    "CACHES",
    "CAN_SKIP",
    "CHECKPOINT_RECOMPUTES",
    "CHILDREN",
    "DOORS",
    "ENGINE_CALL",
    "FORWARD_HOOKS",
    "GRAPH_DOORS",
    "INDUCTORS_DEBUG",
    "INDUCTORS_OUTPUT",
    "NO_LEAF_HOOKS",
    "RAW_SAVED",
    "SAVED",
    "WRAPPER_LINKS",
    "AffectedPrograms",
    "CompileContext",
    "DispatchMode",
    "MemoryRef",
    "NodeContext",
    "Overload",
    "StorageRef",
    "TreeSpec",
    "backward_of_compiled_autograd",
    "call_code",
    "children_of",
    "compile_hooks_of",
    "compiled_outputs",
    "count_compiled",
    "current_node",
    "data_address",
    "dispatch_mode_at",
    "dispatch_modes",
    "dlpack_exchange",
    "emulates_precision",
    "enclosing_operators",
    "engine_code",
    "forget_compiled",
    "forward_hook_dicts",
    "forward_pre_hook_dicts",
    "function_modes",
    "global_step_hooks",
    "graph_task",
    "has_local_tensor",
    "held_by_modules",
    "hide_compiled_autograd",
    "hooks_are_known",
    "hooks_of",
    "hooks_of_new",
    "inductors_graph",
    "inner_call_code",
    "inside_functorch",
    "is_any_autocast",
    "is_in_torch",
    "is_passed_on",
    "is_tracing",
    "is_wrapped",
    "is_wrapper_link",
    "leaf_of",
    "local_tensor",
    "loggers_of",
    "mark_constant",
    "mark_disabled",
    "next_sequence",
    "node_lines",
    "own_buffers",
    "own_parameters",
    "pass_on",
    "passed_on",
    "profiled_step_code",
    "register_hook",
    "saved_getters",
    "scale_of",
    "schema_of",
    "sequence_number",
    "show_compiled_autograd",
    "skip_frames_of",
    "sparse_parts",
    "step_pre_hooks",
    "storage_key",
    "tell_marks",
    "tell_moved",
    "traced_functions",
    "tracing_backend",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_unflatten",
    "version",
    "without_modes",
    "wrap_operator_call",
    "wrap_scripting",
]
