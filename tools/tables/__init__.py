"""Facts about Kubernetes' API, read from a real API server and kept as tables in the tree.

    python -m tools.tables            write embedded/machinery/schema/tables/*.json anew
    python -m tools.tables --check    compare them with the real server, write nothing

What is read from where: `server` talks to the API server, `types` joins its OpenAPI with Go's own
structs, `kinds` reads discovery and the columns of tables, `bootstrap` what a fresh server creates
by itself, `defaults` what it adds to the objects of `samples/`. `generation` runs them all.
"""
