/** Whether the machine has memory to spare for what only makes things faster: the pool, and bodies on standby. */
import { readFileSync } from 'node:fs'

/** Of what the machine has. */
const SPARE_SHARE = 0.08

export function shortOfMemory(): boolean {
  const text = readFileSync('/proc/meminfo', 'utf8')
  const read = (name: string) => Number(new RegExp(`^${name}:\\s*(\\d+)`, 'm').exec(text)?.[1] ?? 0)
  return read('MemAvailable') < read('MemTotal') * SPARE_SHARE
}
