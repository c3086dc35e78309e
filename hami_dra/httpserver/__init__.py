"""HTTP servers that no client can exhaust; /healthz, /readyz and /metrics of every program.

`listening` serves any aiohttp application within limits; `serving` the health and metrics of a
program, `Exposition` renders them; `tls` has certificates in files.
"""

from hami_dra.httpserver.exposition import Exposition, Rendered, SharedRender
from hami_dra.httpserver.health import serving
from hami_dra.httpserver.listening import Limits, listening
from hami_dra.httpserver.tls import CertificateFiles, server_context, stamp_of
