import pytest

from tests.support.scripted_server import Server


@pytest.fixture
async def server():
    server = Server()
    await server.server.start_server()
    yield server
    await server.server.close()
