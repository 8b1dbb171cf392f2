"""An MCP server on stdin and stdout: the tables of a shop. `examples/agents/mcp_tools.py` starts it."""

from mcp.server import MCPServer

TABLES = {"prices": {"lamp": 24.5, "desk": 180, "chair": 79.9}, "stock": {"lamp": 14, "desk": 2, "chair": 30}}
server = MCPServer("shop")


@server.tool()
def lookup(table: str, key: str) -> str:
    """Find a key in a table."""
    return str(TABLES[table][key])


if __name__ == "__main__":
    server.run()
