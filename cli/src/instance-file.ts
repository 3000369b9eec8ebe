/**
 * The instance file in the data directory: which Warren runs on it, and how other commands reach it.
 *
 * Processes are identified by pid and start time, because after a crash or a reboot the pid alone may belong to another
 * program.
 */
import { readFileSync } from 'node:fs'
import { readFile, rm } from 'node:fs/promises'
import { writeFileDurably } from '@warren/kit/files'
import type { InstanceConfig } from './config.ts'

export type ProcessIdentity = {
  pid: number
  /** Field 22 of /proc/PID/stat: clock ticks from boot to the start of the process. */
  startedAt: string
}

/** The launcher is identified by the fields of the instance itself. */
export type Instance = ProcessIdentity & {
  /** The services, so that the next start can stop those that a killed launcher left running. */
  children: ProcessIdentity[]
  /** Absent until the API is ready. */
  baseUrl?: string
  databaseUrl?: string
  /** Absent unless the deployment gateway runs. */
  gatewayUrl?: string
  /** With a development chain: where it is, and the key of a wallet that has money on it. */
  gatewayDevelopment?: { rpcUrl: string; keyFile: string }
}

export async function readInstanceFile(config: InstanceConfig): Promise<Instance | undefined> {
  const text = await readFile(config.instanceFile, 'utf8').catch(() => undefined)
  if (text === undefined) return undefined
  try {
    return JSON.parse(text) as Instance
  } catch {
    return undefined // Warren replaces the file atomically, so it did not write this one. A start overwrites it.
  }
}

export const writeInstanceFile = (config: InstanceConfig, instance: Instance): Promise<void> =>
  writeFileDurably(config.instanceFile, `${JSON.stringify(instance, null, 2)}\n`)

export const removeInstanceFile = (config: InstanceConfig): Promise<void> => rm(config.instanceFile, { force: true })

/** Undefined for a process that has exited, zombies included. */
export function findProcess(pid: number): ProcessIdentity | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    if (fields[0] === 'Z') return undefined
    return { pid, startedAt: fields[19]! } // Always present in /proc/PID/stat.
  } catch {
    return undefined
  }
}

export const isAlive = ({ pid, startedAt }: ProcessIdentity): boolean => findProcess(pid)?.startedAt === startedAt
