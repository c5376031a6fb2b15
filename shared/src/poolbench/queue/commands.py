"""The commands of Redis that queues, leases and dead letters need."""

from poolbench.errors import ConfigError
from poolbench.queue.broker import Broker

#: The youngest of them is LPOS, of Redis 6.0.6; queue, leases and dead letters of ours and of kombu need the others.
NEEDED = (
    "brpop", "del", "eval", "hdel", "hget", "hset", "hsetnx", "lindex", "llen", "lpos", "lpush", "lrange", "lrem",
    "mget", "multi", "rpush", "set", "zadd", "zrange", "zrem",
)  # fmt: skip


def require_commands(broker: Broker) -> None:
    """Raise ConfigError if a Redis server lacks a command, as old releases do; redis.RedisError if it is away."""
    import redis

    client = broker.redis_client()
    client.ping()
    try:
        command_infos = client.execute_command("COMMAND INFO", *NEEDED)
    except redis.exceptions.NoPermissionError:  # a user who may not ask
        return
    if lacking := [name for name, info in zip(NEEDED, command_infos, strict=True) if info is None]:
        raise ConfigError(
            f"the broker {broker.shown} is Redis {_release(client)} without the commands {', '.join(lacking)}: use "
            "Redis 6.2 or later, or Valkey, and disable none of them"
        )


def _release(client: object) -> str:
    import redis

    try:
        return str(client.info("server").get("redis_version", ""))  # type: ignore[attr-defined]
    except redis.RedisError:
        return "(of an unknown release)"
