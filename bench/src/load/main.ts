/**
 * The load generator, a process of its own: what it costs it costs every candidate alike, and no candidate pays for it
 * on its own event loop. It answers each question with what the slice gave.
 */
import { errorText } from '@warren/kit/text'
import { runSlice, type Slice } from './slice.ts'

process.on('disconnect', () => process.exit())
process.on('message', async (slice: Slice) => {
  const answer = await runSlice(slice).catch((error) => ({ error: errorText(error) }))
  process.send?.(answer)
})
process.send?.({ ready: true })
