/**
 * The load generator. It is a separate process, so that its cost is the same for every candidate and no candidate pays
 * for it on its own event loop. Each message is a slice to run; the reply is its result.
 */
import { errorText } from '@warren/kit/error-text'
import { runSlice, type Slice } from './slice.ts'

process.on('disconnect', () => process.exit())
process.on('message', async (slice: Slice) => {
  const reply = await runSlice(slice).catch((error) => ({ error: errorText(error) }))
  process.send?.(reply)
})
process.send?.({ ready: true })
