/**
 * A chain on this machine: anvil from npm. Every transaction is mined at once. With one slot per epoch, the safe block is one
 * behind the newest and the finalized one two.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { withParentDeathSignal } from '@warren/kit/parent-death-signal'

export type Anvil = { url: string; port: number; child: ChildProcess; exited: Promise<string> }
export type AnvilOptions = {
  chainId: number
  /** 0: the system chooses. */
  port?: number
  /** Where the chain is kept while it does not run. Without it, it is forgotten. */
  stateFile?: string
}

/** How much of the chain a kill may lose. It keeps its state when it is stopped with SIGINT. */
const SAVE_EVERY_S = 2

/** Always on loopback: its keys are no secret to anyone who can reach it. */
export async function startAnvil({ chainId, port = 0, stateFile }: AnvilOptions): Promise<Anvil> {
  const [command, args] = withParentDeathSignal('SIGINT', await findAnvil(), [
    ...['--chain-id', String(chainId), '--host', '127.0.0.1', '--port', String(port), '--slots-in-an-epoch', '1'],
    // Web pages must not use it.
    '--no-cors',
    ...(stateFile === undefined ? [] : ['--state', stateFile, '--state-interval', String(SAVE_EVERY_S)]),
  ])
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  const exited = new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(error.message))
    child.once('exit', (code, signal) => resolve(signal ?? `exit status ${code}`))
  })
  const { promise, resolve, reject } = Promise.withResolvers<string>()
  void exited.then((reason) => reject(new Error(`anvil ended before it listened: ${reason}`)))
  createInterface(child.stdout!).on('line', (line) => {
    const [, address] = /^Listening on (\S+)/.exec(line) ?? []
    if (address) resolve(`http://${address}`)
  })
  const url = await promise
  return { url, port: Number(new URL(url).port), child, exited }
}

/** The program itself: the script that the package installs would be a process in between. */
async function findAnvil(): Promise<string> {
  // @ts-expect-error The package has no types.
  const { PLATFORM_SPECIFIC_PACKAGE_NAME } = await import('@foundry-rs/anvil/const.mjs')
  const name = (PLATFORM_SPECIFIC_PACKAGE_NAME as (tool: string) => string | undefined)('anvil')
  if (name === undefined) throw new Error(`there is no anvil for ${process.platform} ${process.arch}`)
  return fileURLToPath(import.meta.resolve(`${name}/bin/anvil`))
}
