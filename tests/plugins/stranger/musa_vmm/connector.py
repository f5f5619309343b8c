"""A plug-in that provides no driver, and is no broken driver for that: a connector of a stranger."""

from vmmcache import Connector, ConnectorNeeds, ConnectorSpec, hookimpl

NEEDS = ConnectorNeeds(alignment=4096, whole_segments=True)


class MusaConnector(Connector):
    name = "musa_connector"
    needs = NEEDS

    def __init__(self, *, port=0):
        super().__init__()
        self.port = port

    def _register(self, segments):
        yield from segments

    def _unregister(self, segments):
        yield from segments


@hookimpl
def vmmcache_connectors():
    yield ConnectorSpec("musa_connector", open=MusaConnector, needs=NEEDS, reason=lambda: None)
