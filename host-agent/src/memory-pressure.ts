/** Detects that the host is short of memory. The pool and the VMMs on standby are then stopped: they only save time. */
import { readFileSync } from 'node:fs'

/** Share of the host's memory that must be available. */
const AVAILABLE_MIN_SHARE = 0.08

export function isMemoryShort(): boolean {
  const { availableMib, totalMib } = readMemory()
  return availableMib < totalMib * AVAILABLE_MIN_SHARE
}

export function readMemory(): { availableMib: number; totalMib: number } {
  const text = readFileSync('/proc/meminfo', 'utf8')
  const read = (name: string) => Number(new RegExp(`^${name}:\\s*(\\d+)`, 'm').exec(text)?.[1] ?? 0) / 1024
  return { availableMib: read('MemAvailable'), totalMib: read('MemTotal') }
}
