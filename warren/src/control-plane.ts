/**
 * The control plane as a child: in a session of its own, so that Ctrl-C reaches only us and the order of stopping is
 * ours; without root's powers; with a channel that closes when we die, upon which it stops by itself.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import path from 'node:path'
import { unprivileged } from '@warren/kit/unprivileged'
import { ROOT } from './config.ts'

export type ControlPlane = {
  pid: number
  baseUrl: string
  metricsUrl: string
  exited: Promise<string>
  stop(): Promise<void>
}

const START_LIMIT_MS = 60_000
const STOP_LIMIT_MS = 8_000

export async function startControlPlane(env: NodeJS.ProcessEnv): Promise<ControlPlane> {
  const [command, args] = unprivileged(process.execPath, [path.join(ROOT, 'control-plane/src/main.ts')])
  const child = spawn(command, args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'], detached: true, env })
  const exited = new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(error.message))
    child.once('exit', (code, signal) => resolve(signal ? `ended by ${signal}` : `exit status ${code}`))
  })
  const { baseUrl, metricsUrl } = await untilReady(child, exited)
  return { pid: child.pid!, baseUrl, metricsUrl, exited, stop: () => stopChild(child, exited) }
}

async function untilReady(
  child: ChildProcess,
  exited: Promise<string>,
): Promise<{ baseUrl: string; metricsUrl: string }> {
  let timer: NodeJS.Timeout | undefined
  try {
    return await Promise.race([
      new Promise<{ baseUrl: string; metricsUrl: string }>((resolve) => {
        child.once('message', (message) => resolve(message as { baseUrl: string; metricsUrl: string }))
      }),
      exited.then((how) => {
        throw new Error(`the control plane did not start (${how}); its last lines above say why`)
      }),
      new Promise<never>((_, reject) => {
        timer = setTimeout(() => reject(new Error('the control plane did not start within 60 s')), START_LIMIT_MS)
      }),
    ])
  } catch (error) {
    child.kill('SIGKILL')
    throw error
  } finally {
    clearTimeout(timer)
  }
}

async function stopChild(child: ChildProcess, exited: Promise<string>): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill('SIGTERM')
  const timer = setTimeout(() => child.kill('SIGKILL'), STOP_LIMIT_MS)
  await exited
  clearTimeout(timer)
}
