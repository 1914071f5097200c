-- Write something behind everything that this connection has read, for WAIT to wait for.

persist()
redis.call('SET', key, '')
