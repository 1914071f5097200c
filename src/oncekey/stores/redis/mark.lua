-- Write something, behind everything that this connection has seen, for WAIT to wait for.

persist()
redis.call('SET', key, '')
