"""What a server is told when it starts: the model, its limits, the cache, and where it listens."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..automata.budget import Budget


@dataclass(frozen=True)
class ModelSettings:
    """The model to serve. Without a folder, the server makes a small model of nonsense."""

    folder: Path | None = None  # of a causal language model of transformers
    tokenizer: Path | None = None  # a folder or file, if the tokenizer is not in the model's folder
    eos: int | None = None  # token that ends a text, if not the tokenizer's own
    name: str | None = None  # for clients, if not the folder's
    device: str | None = None  # a GPU if there is one, else the CPU
    dtype: str = "auto"  # of the weights
    calls: str = "hermes"  # the family of the model, by how it writes calls of tools: see `families.NAMES`
    url: str | None = None  # of a running vLLM or SGLang in the place of a folder, for a server of items
    key: str | None = field(default=None, repr=False)  # that this engine wants from its clients


@dataclass(frozen=True)
class Limits:
    """The most that one server does."""

    rows: int = 16  # sequences written at once
    max_queue: int = 256  # sequences that wait, of which half may be of one client
    max_tokens: int = 1024  # of one answer
    max_schema_bytes: int = 1 << 18
    max_body_bytes: int = 4 << 20
    compile_processes: int = 4  # of which one client has half at most, of an odd number one more
    budget: Budget = field(default_factory=lambda: Budget(seconds=10.0))  # of one constraint
    grace_seconds: float = 30.0  # to finish answers after the server is told to stop
    stall_seconds: float = 60.0  # of one step, after which the server is not ready
    whitespace: str | tuple[str, str] = "spaced"  # of JSON: one style wastes no tokens
    allow: tuple[str, ...] = ()  # keywords of schemas that may stay unenforced, for requests that name none


@dataclass(frozen=True)
class Access:
    """Where the server listens, who may send requests, and how slowly."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()  # one of them goes with each request; none: anybody may send requests
    certificate: Path | None = None  # of TLS, in PEM; None: plain HTTP
    private_key: Path | None = None  # of the certificate; None: it is in the same file
    max_connections: int = 1000
    max_header_bytes: int = 64 << 10  # of one request
    read_seconds: float = 30.0  # in which a client sends a request
    write_seconds: float = 30.0  # after which a client that does not read its answer is cut off
    log_requests: bool = False  # whether a line of JSON is logged for each request

    @property
    def address(self) -> str:
        """Where clients find the server."""
        return f"{'http' if self.certificate is None else 'https'}://{self.host}:{self.port}"

    def __post_init__(self) -> None:
        if not all(self.api_keys):
            raise ValueError("an API key is empty: anybody could send it")


@dataclass(frozen=True)
class CacheSettings:
    """How many bytes of tables the server keeps, in memory and in a folder."""

    max_bytes: int = 1 << 30
    directory: Path | None = None
    directory_bytes: int = 4 << 30


@dataclass(frozen=True)
class CatalogueSettings:
    """A catalogue of items to serve, by the name that clients have for it."""

    name: str
    file: Path
    log: Path | None = None  # of its updates; None: its items stay as they are
    follow: bool = False  # the log is another process's, which alone writes to it
    capacity: int = 1 << 16  # sequences that may be added until the file is saved anew


@dataclass(frozen=True)
class ItemSettings:
    """What a server of items serves, and the most that one request may ask for."""

    models: tuple[ModelSettings, ...] = ()
    catalogues: tuple[CatalogueSettings, ...] = ()
    filters: tuple[tuple[str, str], ...] = ()  # names, and the expressions over columns that they stand for
    prompt: str = "{history}"  # what a model reads of a history: the semantic IDs of its items stand for the braces
    between: str = ""  # text that stands between two items of a history
    example: bool = False  # a small model and catalogue, made on the spot
    beam_rows: int = 4096  # beams of one batch, over all its requests
    most_beams: int = 512  # of one request
    shadow: tuple[str, float] | None = None  # a model that searches a share of the requests of others as well
    deadline: float = 30.0  # seconds until a request is given up that names no time of its own


@dataclass(frozen=True)
class Settings:
    """All settings of one server."""

    model: ModelSettings = field(default_factory=ModelSettings)
    items: ItemSettings | None = None  # a server of items, and not of texts
    limits: Limits = field(default_factory=Limits)
    cache: CacheSettings = field(default_factory=CacheSettings)
    access: Access = field(default_factory=Access)
    playground: bool = True  # whether its page is at /
