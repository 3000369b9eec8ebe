/**
 * Measures how much slower this machine is now than a quiet machine with two cores at 2.5 GHz, by what tests do most:
 * start a process of Node and compute, on every core at once.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { availableParallelism } from 'node:os'

const ROUNDS = 3
/** The mean duration of a round on the quiet machine. */
const QUIET_MS = 400
/** Beyond this a machine is too slow for the tests, and waiting longer only hides a hang. */
const SLOWNESS_MAX = 8

const PROGRAM = `
  const { createHash } = require('node:crypto')
  let count = 0
  for (let i = 0; i < 4e7; i++) count = (count * 31 + i) | 0
  const hash = createHash('sha256')
  for (let i = 0; i < 64; i++) hash.update(Buffer.alloc(1 << 20, count & 255))
  hash.digest()`

export async function measureSlowness(): Promise<{ slowness: number; roundMs: number }> {
  const startedAt = performance.now()
  for (let round = 0; round < ROUNDS; round++) {
    await Promise.all(Array.from({ length: availableParallelism() }, compute))
  }
  const roundMs = (performance.now() - startedAt) / ROUNDS
  return { slowness: rateSlowness(roundMs), roundMs }
}

/** One decimal, from 1 to SLOWNESS_MAX. */
export const rateSlowness = (roundMs: number): number =>
  Math.round(Math.min(Math.max(roundMs / QUIET_MS, 1), SLOWNESS_MAX) * 10) / 10

async function compute(): Promise<void> {
  const child = spawn(process.execPath, ['-e', PROGRAM], { stdio: 'ignore' })
  const [code] = await once(child, 'exit')
  if (code !== 0) throw new Error(`measuring the speed of this machine failed with exit status ${code}`)
}
