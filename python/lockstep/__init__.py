"""Lockstep as a backend of torch.distributed: init_process_group("lockstep")."""


def _create(options, pg_options):
    import hashlib

    import torch
    from lockstep import _lockstep

    if torch.__version__.split("+")[0] != _lockstep.torch_version:
        raise RuntimeError(
            f"lockstep was built against torch {_lockstep.torch_version}, but this is torch {torch.__version__}; "
            "reinstall it: pip install --force-reinstall --no-deps ./python"
        )
    # Groups of different ranks may come with one name and one part of the store, where each rank counted its own.
    ranks = hashlib.sha256(str(list(options.global_ranks_in_group)).encode()).hexdigest()[:16]
    return _lockstep.create(
        torch.distributed.PrefixStore(ranks, options.store),
        options.group_rank,
        options.group_size,
        options.timeout,
        options.group_id,
        options.global_ranks_in_group or list(range(options.group_size)),
    )


def register():
    """Registers the backend with torch. `import torch` does it, unless TORCH_DEVICE_BACKEND_AUTOLOAD is 0."""
    import torch.distributed as dist

    if dist.is_available() and "LOCKSTEP" not in dist.Backend._plugins:
        from lockstep import _beside_gloo

        dist.Backend.register_backend("lockstep", _create, extended_api=True, devices=["cpu"])
        _beside_gloo.extend()


def _autoload():
    """Called by `import torch`, which fails if this raises: it loads nothing and raises nothing."""
    try:
        register()
    except Exception as error:
        import warnings

        warnings.warn(f"the torch.distributed backend lockstep is not available: {error}", stacklevel=2)
