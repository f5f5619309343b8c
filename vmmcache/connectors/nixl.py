"""NIXL: one agent with one backend, registered memory of vmmcache, transfers between agents.

The library is imported when a connector is opened. Two properties of it shape this adapter. UCX keeps a registration
after NIXL has deregistered, and with it the memory, and it may use it again for other memory at the same address; its
cache is therefore switched off for the agent. And UCX's TCP transport lets the *target's* process copy the bytes, so a
peer that writes after the target went to sleep would end that process: when nothing is registered any more, the agent
goes, its connections with it, and the next registration makes another.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from vmmcache.connectors.cards import Card, RemoteMemory
from vmmcache.connectors.nixl_library import load, parameters_of
from vmmcache.connectors.nixl_plugin import NEEDS
from vmmcache.connectors.transfer import Operation, Transfer
from vmmcache.connectors.transfers import TransferConnector
from vmmcache.errors import ConfigError, ConnectorError
from vmmcache.memory.descriptors import RegistrableSegment

__all__ = ["NEEDS", "NixlConnector"]

Result = TypeVar("Result")


class NixlConnector(TransferConnector):
    """An agent of NIXL.

    Parameters
    ----------
    agent : str, optional
        Its name, unique among peers; made up by default.
    backend : str
        The plug-in of NIXL that moves the bytes.
    parameters : mapping of str to str, optional
        For the backend, beside what this adapter sets: see NIXL's ``create_backend``.
    progress_thread : bool
        Whether NIXL has a thread that serves peers. Without it, a target that is busy elsewhere makes them wait.
    patience_s : float
        How long `quiesce` waits for transfers of this side.

    Raises
    ------
    ConfigError
        An option is wrong.
    ConnectorUnavailable
        NIXL is not installed or cannot be loaded.
    ConnectorError
        NIXL has no such backend, or could not make one.
    """

    name = "nixl"
    needs = NEEDS

    def __init__(
        self,
        *,
        agent: str | None = None,
        backend: str = "UCX",
        parameters: Mapping[str, str] | None = None,
        progress_thread: bool = True,
        patience_s: float = 30.0,
    ) -> None:
        super().__init__(f"vmmcache-{secrets.token_hex(6)}" if agent is None else agent, patience_s)
        self._backend = backend
        self._parameters = parameters_of(backend, parameters or {})
        self._api, self._errors = load()
        self._progress_thread = progress_thread
        self._agent: Any = None
        self._descriptors: dict[int, Any] = {}
        self._known: dict[str, list[bytes]] = {}
        """Metadata of each peer, for the next agent."""
        self._open_agent()  # whatever is wrong with the options shows here and not at the first registration

    def messages(self) -> dict[str, list[bytes]]:
        """Messages that came with the transfers of peers since the last call, by the name of the peer."""
        with self.lock:
            self._check("messages")
            found: dict[str, list[bytes]] = self._call("get_new_notifs", self._open_agent().get_new_notifs)
            return found

    # Registering ----------------------------------------------------------------------------------------------------

    def _register(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        agent = self._open_agent()
        for segment in segments:
            entry = [(segment.base, segment.nbytes, segment.device_id, "")]
            registered = self._call(
                "register_memory", agent.register_memory, entry, segment.mem_type, [self._backend], about=segment
            )
            self._descriptors[segment.base] = registered
            yield segment

    def _unregister(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        for segment in segments:
            registered = self._descriptors[segment.base]
            self._call("deregister_memory", self._agent.deregister_memory, registered, [self._backend], about=segment)
            del self._descriptors[segment.base]
            yield segment
        if not self._descriptors:
            self._drop_agent()

    def _close(self) -> None:
        super()._close()
        self._drop_agent()

    # Peers and transfers --------------------------------------------------------------------------------------------

    def _metadata(self, parts: Sequence[RegistrableSegment] | None) -> bytes:
        agent = self._open_agent()
        if parts is None:
            return bytes(self._call("get_agent_metadata", agent.get_agent_metadata))
        entries = [(each.base, each.nbytes, each.device_id, "") for each in parts]
        if not entries:
            return b""
        descriptors = agent.get_reg_descs(entries, parts[0].mem_type)
        return bytes(
            self._call(
                "get_partial_agent_metadata", agent.get_partial_agent_metadata, descriptors, False, [self._backend]
            )
        )

    def _connect(self, card: Card) -> None:
        if not card.metadata:  # a partial card of nothing
            return
        found = self._call("add_remote_agent", self._open_agent().add_remote_agent, card.metadata)
        name = found.decode() if isinstance(found, bytes) else str(found)
        if name != card.agent:
            self._call("remove_remote_agent", self._agent.remove_remote_agent, name)
            raise ConfigError("card", card.agent, f"its metadata is that of an agent called {name!r}")
        # A whole card holds what all before it did.
        self._known[name] = [*(self._known.get(name, []) if card.partial else []), card.metadata]

    def _disconnect(self, agent: str) -> None:
        if self._known.pop(agent, None) is not None and self._agent is not None:
            try:
                self._call("remove_remote_agent", self._agent.remove_remote_agent, agent)
            except ConnectorError as error:
                # A peer that has gone away itself is not known any more, which is what was wanted.
                if error.name != "NIXL_ERR_NOT_FOUND":
                    raise

    def _start(
        self, operation: Operation, remote: RemoteMemory, copies: Sequence[tuple[int, int, int]], message: bytes
    ) -> Transfer:
        agent = self._agent
        local = next(iter(self._registered.values()))  # one kind of memory on one device, as `needs` says
        ours, theirs = local.device_id, remote.device_id
        here = agent.get_xfer_descs([(address, nbytes, ours) for address, _, nbytes in copies], local.mem_type)
        there = agent.get_xfer_descs([(address, nbytes, theirs) for _, address, nbytes in copies], remote.mem_type)
        handle = self._call(
            "initialize_xfer", agent.initialize_xfer, operation, here, there, remote.agent, message, [self._backend]
        )
        return _NixlTransfer(self, operation, remote, handle)

    # The library ----------------------------------------------------------------------------------------------------

    def _open_agent(self) -> Any:
        """The agent, made anew where the last one went with the last registration."""
        if self._agent is None:
            config = self._api.nixl_agent_config(backends=[], enable_prog_thread=self._progress_thread)
            agent = self._call("nixl_agent", self._api.nixl_agent, self.agent, config)
            if self._backend not in agent.plugin_list:
                plugins = ", ".join(agent.plugin_list) or "none"
                raise ConfigError("backend", self._backend, f"NIXL has no such plug-in here (it has: {plugins})")
            self._call("create_backend", agent.create_backend, self._backend, self._parameters)
            self._agent = agent
            for name, cards in tuple(self._known.items()):
                for metadata in cards:
                    try:
                        self._call("add_remote_agent", agent.add_remote_agent, metadata)
                    except ConnectorError as error:
                        self.disconnect(name, f"it could not be connected anew: {error}")
                        break
        return self._agent

    def _drop_agent(self) -> None:
        # The library has no other way: an agent ends, and closes its connections, when nobody refers to it.
        self._agent = None

    def _call(
        self, name: str, function: Callable[..., Result], *arguments: Any, about: RegistrableSegment | None = None
    ) -> Result:
        try:
            return function(*arguments)
        except self._errors as error:
            where = f" for {about.nbytes} bytes at {about.base:#x}" if about is not None else ""
            raise ConnectorError(
                f"{name}{where}: {type(error).__name__}: {error}", connector=self.name, call=name, name=str(error)
            ) from error


class _NixlTransfer(Transfer):
    """A transfer request of NIXL, from the moment at which it is posted."""

    def __init__(self, connector: NixlConnector, operation: Operation, remote: RemoteMemory, handle: Any) -> None:
        super().__init__(connector, operation, remote)
        self._nixl = connector
        self._handle = handle
        self._agent = connector._agent
        self._state = connector._call("transfer", self._agent.transfer, handle)

    def _poll(self) -> bool:
        if self._state == "PROC":
            self._state = self._nixl._call("check_xfer_state", self._agent.check_xfer_state, self._handle)
        if self._state == "ERR":
            raise ConnectorError(f"{self.operation} failed", connector="nixl", call="check_xfer_state")
        return bool(self._state == "DONE")

    def _finish(self) -> None:
        handle, agent = self._handle, self._agent
        self._handle = self._agent = None
        self._nixl._call("release_xfer_handle", agent.release_xfer_handle, handle)
