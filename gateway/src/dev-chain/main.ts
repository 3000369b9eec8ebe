/**
 * The development chain: both chains on this machine, with a token of ours at the addresses of the real ones, and a wallet
 * that has plenty of it. It is worth nothing. `./warren start` runs it where the gateway has no other chains.
 *
 * The chains are kept in the data directory. A chain that began anew would repeat the hashes of transactions, which the
 * gateway takes once; should its file be lost, the numbers of the accounts continue by the clock, so that hashes differ.
 *
 * With a channel to a parent (kit/src/parent-channel.ts) it reports what the gateway needs, and stops when the channel closes. If one of the chains
 * ends, it ends as well, and the parent starts it again on the same ports.
 */
import { readFile, rename } from 'node:fs/promises'
import path from 'node:path'
import { readConfig, text } from '@warren/kit/config'
import { errorText } from '@warren/kit/error-text'
import { openParentChannel } from '@warren/kit/parent-channel'
import { onStopSignal } from '@warren/kit/stop'
import { createTestClient, http, publicActions } from 'viem'
import { CHAIN_NAMES, CHAINS, type ChainName, TOKEN_NAMES } from '../chains/table.ts'
import { type Anvil, startAnvil } from './anvil.ts'
import { type DevKey, openDevKeys } from './keys.ts'
import { putTokens, setTokenBalance } from './token.ts'

const SETTINGS = {
  folder: text('WARREN_DEV_CHAIN_DIR', {
    default: '',
    description: 'Directory of the chains and keys.',
    internal: true,
  }),
  ports: text('WARREN_DEV_CHAIN_PORTS', { default: '0,0', description: 'Ports of both chains.', internal: true }),
}
const MILLION_DOLLARS = 1_000_000n * 1_000_000n
const GAS = 10n ** 21n
/** Numbers of accounts begin here at this time and grow by one a second, which no user of a development chain does. */
const NUMBERS_SINCE_S = Date.parse('2026-01-01T00:00:00Z') / 1000

const { folder, ports } = readConfig(SETTINGS, process.env)
const running: Anvil[] = []
let isStopping = false

onStopSignal(() => void stop(0))
const parent = openParentChannel(() => void stop(0))

try {
  const keys = await openDevKeys(folder)
  const wanted = ports.split(',').map(Number)
  const [arbitrum, base] = await Promise.all(CHAIN_NAMES.map((name, i) => startChain(name, wanted[i] ?? 0, keys)))
  parent?.send({
    ready: true,
    rpcArbitrum: arbitrum!.url,
    rpcBase: base!.url,
    ports: [arbitrum!.port, base!.port],
    payTo: keys.recipient.address,
  })
} catch (error) {
  parent?.send({ failed: errorText(error) })
  await stop(1)
}

async function startChain(name: ChainName, port: number, keys: Record<'wallet' | 'settler', DevKey>): Promise<Anvil> {
  const chain = CHAINS[name]
  const stateFile = path.join(folder, `${name}.json`)
  await setAsideIfBroken(stateFile)
  const anvil = await startAnvil({ chainId: chain.id, port, stateFile })
  running.push(anvil)
  void anvil.exited.then(() => isStopping || stop(1))
  const client = createTestClient({ mode: 'anvil', transport: http(anvil.url) }).extend(publicActions)
  await putTokens(client, chain)
  const number = Math.floor(Date.now() / 1000) - NUMBERS_SINCE_S
  for (const { address } of [keys.wallet, keys.settler]) {
    await client.setBalance({ address, value: GAS })
    const used = await client.getTransactionCount({ address })
    await client.setNonce({ address, nonce: Math.max(used, number) })
  }
  for (const token of TOKEN_NAMES) {
    await setTokenBalance(client, chain.tokens[token], keys.wallet.address, MILLION_DOLLARS)
  }
  return anvil
}

/** A kill can interrupt anvil while it writes its file. */
async function setAsideIfBroken(stateFile: string): Promise<void> {
  const text = await readFile(stateFile, 'utf8').catch(() => undefined)
  if (text === undefined) return
  try {
    JSON.parse(text)
  } catch {
    await rename(stateFile, `${stateFile}.broken`)
  }
}

async function stop(exitCode: number): Promise<never> {
  isStopping = true
  for (const { child } of running) child.kill('SIGINT')
  await Promise.all(running.map(({ exited }) => exited))
  process.exit(exitCode)
}
