"""Chat templates are programs that the agent writes: accepted are those that can only write text.

A template is parsed here, never compiled or rendered. Its syntax tree may hold only what chat templates need;
everything else is refused. Names that are put together at run time are left to Jinja's sandbox, and time and
memory to the limits of the grading child, which renders it.
"""

from collections.abc import Iterator, Set

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agent2rl.core.errors import Refusal
from agent2rl.grading.untrusted import shown


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TEMPLATE_BYTES = 64 * 1024
DEPTH = 100
SYNTAX = _words(
    """Template Output TemplateData For If Break Continue Assign AssignBlock With Macro Name NSRef Const Tuple
    List Dict Pair Keyword CondExpr Filter Test Call Getitem Getattr Slice Concat Compare Operand Add Sub Mul
    Div FloorDiv Mod And Or Not Neg Pos"""
)
FUNCTIONS = _words("namespace range dict raise_exception strftime_now loop")
VARIABLES = FUNCTIONS | _words(
    """messages tools documents bos_token eos_token pad_token unk_token sep_token cls_token mask_token
    additional_special_tokens add_generation_prompt continue_final_message enable_thinking thinking
    reasoning_effort builtin_tools custom_tools tools_in_user_message date_string"""
)
NEVER = _words("self super caller varargs kwargs lipsum cycler joiner")
"""Names that Jinja itself gives a meaning; no chat template needs them."""
METHODS = _words(
    """capitalize casefold count endswith find index isalpha isdigit isnumeric isspace join lower lstrip
    removeprefix removesuffix replace rfind rsplit rstrip split splitlines startswith strip title upper
    get items keys values cycle changed"""
)
ATTRIBUTE_FILTERS = _words("map selectattr rejectattr sort unique groupby min max sum")
"""They take attributes by name, so the name must be seen."""
FILTERS = ATTRIBUTE_FILTERS | _words(
    """abs batch capitalize count d default dictsort e escape first float indent int items join last length
    list lower reject replace reverse round safe select slice string striptags title tojson trim upper
    wordcount"""
)


class _Generation(Extension):
    """`{% generation %}` marks what the assistant says, for training; to a reader it is only its body."""

    tags = {"generation"}  # noqa: RUF012 (declared by Jinja)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


ENVIRONMENT = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
)


def check_template(source: str) -> None:
    """Refuse a template that is more than a chat template."""
    size = len(source.encode(errors="surrogatepass"))
    if size > TEMPLATE_BYTES:
        raise _refusal(f"it has {size:,} bytes; the limit is {TEMPLATE_BYTES:,}")
    try:
        tree = ENVIRONMENT.parse(source)
    except RecursionError:
        raise _refusal(f"it is nested more than {DEPTH} deep") from None
    except (TemplateError, ValueError, OverflowError) as error:
        raise _refusal(f"it is not valid Jinja: {shown(str(error))}") from None
    found = list(_walk(tree))
    macros = {node.name for node in found if isinstance(node, nodes.Macro)}
    variables = VARIABLES | macros | set(_own_variables(found))
    for node in found:
        if reason := _fault(node, variables, FUNCTIONS | macros):
            raise _refusal(f"line {node.lineno}: {reason}")


def _walk(tree: nodes.Node) -> Iterator[nodes.Node]:
    level = [tree]
    for _ in range(DEPTH):
        yield from level
        level = [child for node in level for child in node.iter_child_nodes()]
    if level:
        raise _refusal(f"it is nested more than {DEPTH} deep")


def _own_variables(found: list[nodes.Node]) -> Iterator[str]:
    """Variables that the template sets, and optional ones: it asks first whether they are defined."""
    for node in found:
        match node:
            case nodes.Name(name=name, ctx="store" | "param"):
                yield name
            case nodes.Test(name="defined" | "undefined", node=nodes.Name(name=name)):
                yield name


def _fault(node: nodes.Node, variables: Set[str], functions: Set[str]) -> str | None:
    """Why this node may not be in a template; what is below it is looked at by itself."""
    match node:
        case _ if type(node).__name__ not in SYNTAX:
            return f"{type(node).__name__.lower()} is not accepted"
        case nodes.Name(name=name) | nodes.NSRef(name=name) if name not in variables:
            return f"the variable {shown(name)} is not known"
        case nodes.Name(name=name) | nodes.Macro(name=name) if name in NEVER or name.startswith("__"):
            return f"the name {shown(name)} is not accepted"
        case (
            nodes.Getattr(attr=name)
            | nodes.NSRef(attr=name)
            | nodes.Getitem(arg=nodes.Const(value=str(name)))
        ) if name.startswith("_"):
            return f"the name {shown(name)} is not accepted"
        case nodes.Const(value=str(text)) if "__" in text:
            return f"the text {shown(text)} is not accepted, for its double underscore"
        case nodes.Filter(name=name) if name not in FILTERS:
            return f"the filter {shown(name)} is not accepted"
        case nodes.Filter(name=name) if name in ATTRIBUTE_FILTERS and not _plain(node):
            return f"the filter {shown(name)} needs plain names of attributes and accepted filters"
        case nodes.Test(name=name) if name not in ENVIRONMENT.tests:
            return f"there is no test {shown(name)}"
        case nodes.Call(node=called) if not _harmless(called, functions):
            return "only macros, known functions and methods of text and lists may be called"
    return None


def _plain(node: nodes.Filter) -> bool:
    """Whether no argument can name a private attribute, nor `map` a filter that is not accepted."""
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        return False
    if node.name == "map" and node.args:
        match node.args[0]:
            case nodes.Const(value=str(name)) if name in FILTERS:
                pass
            case _:
                return False
    arguments = [*node.args, *(keyword.value for keyword in node.kwargs)]
    texts = [str(argument.value) for argument in arguments if isinstance(argument, nodes.Const)]
    return not any(part.startswith("_") for text in texts for part in text.split("."))


def _harmless(called: nodes.Expr, functions: Set[str]) -> bool:
    match called:
        case nodes.Name(name=name):
            return name in functions
        case nodes.Getattr(attr=name):
            return name in METHODS
    return False


def _refusal(reason: str) -> Refusal:
    return Refusal(
        f"The chat template is not accepted: {reason}.",
        "Keep the base model's template, or write one that only loops over messages and prints their fields.",
    )
