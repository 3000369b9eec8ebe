/**
 * Combines concurrent lookups of one kind into few statements.
 *
 * A lookup that arrives while a statement is running waits for the next statement, together with all others that arrive
 * in the meantime. A single lookup is therefore sent immediately, many share one round trip, and every result was read
 * after its lookup arrived. Unlike a cache, this never returns stale data.
 *
 * A statement is sent at the end of a turn of the event loop, not in the middle of it. That way it includes the requests
 * that are still parsed in the same turn, and the responses of the previous statement are sent before the next one is
 * built. Under load, one half of the requests is being answered while the other half is being looked up.
 */
export function batched<Key, Value>(
  load: (keys: Key[]) => Promise<Map<Key, Value>>,
): (key: Key) => Promise<Value | undefined> {
  type Waiter = { resolve: (value: Value | undefined) => void; reject: (error: unknown) => void }
  let waiting = new Map<Key, Waiter[]>()
  let busy = false

  async function flush(): Promise<void> {
    const batch = waiting
    waiting = new Map()
    try {
      const values = await load([...batch.keys()])
      for (const [key, waiters] of batch) for (const waiter of waiters) waiter.resolve(values.get(key))
    } catch (error) {
      for (const waiters of batch.values()) for (const waiter of waiters) waiter.reject(error)
    }
    busy = waiting.size > 0
    if (busy) setImmediate(flush)
  }

  return (key) =>
    new Promise((resolve, reject) => {
      const waiters = waiting.get(key)
      if (waiters) waiters.push({ resolve, reject })
      else waiting.set(key, [{ resolve, reject }])
      if (busy) return
      busy = true
      setImmediate(flush)
    })
}
