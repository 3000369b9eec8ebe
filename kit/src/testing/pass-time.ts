import { setTimeout as delay } from 'node:timers/promises'

/**
 * For the few tests whose subject is time: that nothing happens for a while, or that something happens at a random moment.
 * `why` says so to the reader. Every other test waits for a condition (until.ts).
 */
export const passTime = (ms: number, _why: string): Promise<void> => delay(ms)
