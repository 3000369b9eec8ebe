import { setTimeout as delay } from 'node:timers/promises'

/** Waits for a condition instead of for a time. */
export async function until(condition: () => Promise<boolean> | boolean, limitMs = 30_000): Promise<void> {
  for (const deadline = Date.now() + limitMs; Date.now() < deadline; await delay(10)) {
    if (await condition()) return
  }
  throw new Error(`the condition did not come true within ${limitMs} ms: ${condition}`)
}
