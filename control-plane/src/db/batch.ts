/**
 * Many lookups of one kind become few statements.
 *
 * A lookup that comes while a statement is under way waits for the next one, together with all others that come in
 * the meantime. So a lone request goes out at once, a crowd shares the round trip, and every answer was read after
 * its request arrived: nothing stale is ever given, unlike with a cache.
 *
 * A statement goes out at the end of a turn of the event loop, not in the middle of it: the requests that the same turn
 * still parses go along, and the answers of the last statement are sent before the next one is built. Under load half
 * the crowd is then being answered while the other half is being looked up.
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
