/**
 * Which Warren runs on a data directory: a small file with the launcher's pid, and what others need to reach it.
 * A pid alone may be anybody's after a crash or a reboot; together with its start time it is one process only.
 */
import { readFileSync } from 'node:fs'
import { readFile, rm } from 'node:fs/promises'
import { writeFileDurably } from '@warren/kit/files'
import type { Box } from './config.ts'

export type ProcessMark = { pid: number; startedAt: string }

export type Instance = ProcessMark & {
  /** The control plane, so that one left behind by a killed launcher can be ended. */
  children: ProcessMark[]
  /** Absent until it is ready. */
  baseUrl?: string
  databaseUrl?: string
}

export async function readInstance(box: Box): Promise<Instance | undefined> {
  const text = await readFile(box.instanceFile, 'utf8').catch(() => undefined)
  if (text === undefined) return undefined
  try {
    return JSON.parse(text) as Instance
  } catch {
    return undefined // Written whole or not at all, so this is not ours; a start replaces it.
  }
}

export const writeInstance = (box: Box, instance: Instance): Promise<void> =>
  writeFileDurably(box.instanceFile, `${JSON.stringify(instance, null, 2)}\n`)

export const removeInstance = (box: Box): Promise<void> => rm(box.instanceFile, { force: true })

/** Field 22 of /proc/PID/stat: ticks since boot when it started. Gone or a zombie: undefined. */
export function markOf(pid: number): ProcessMark | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    if (fields[0] === 'Z') return undefined
    return { pid, startedAt: fields[19]! }
  } catch {
    return undefined
  }
}

export const isAlive = (mark: ProcessMark): boolean => markOf(mark.pid)?.startedAt === mark.startedAt
