/** The development chain as `warren start` runs it: a process that is stopped, killed, and started again. */
import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, stat, truncate } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { createPublicClient, createWalletClient, erc20Abi, http } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { CHAINS } from '../chains/table.ts'

type Ready = {
  rpcArbitrum: string
  rpcBase: string
  ports: number[]
  payTo: `0x${string}`
}

const folder = await mkdtemp(path.join(tmpdir(), 'warren-dev-chain-'))
after(() => rm(folder, { recursive: true, force: true }))
/** Where the launcher expects them. */
const walletKeyFile = path.join(folder, 'wallet.key')
const settlerKeyFile = path.join(folder, 'settler.key')

async function start(ports = '0,0') {
  const { NODE_TEST_CONTEXT: _, ...env } = process.env
  const child = fork(path.join(import.meta.dirname, 'main.ts'), {
    env: { ...env, WARREN_DEV_CHAIN_DIR: folder, WARREN_DEV_CHAIN_PORTS: ports },
  })
  after(() => child.kill('SIGTERM'))
  const [message] = (await once(child, 'message')) as [Ready & { failed?: string }]
  assert.equal(message.failed, undefined)
  return { child, ...message }
}

const readerOf = (url: string) => createPublicClient({ transport: http(url), cacheTime: 0 })
const balanceOf = (url: string, address: `0x${string}`) =>
  readerOf(url).readContract({
    address: CHAINS.arbitrum.tokens.usdc.address,
    abi: erc20Abi,
    functionName: 'balanceOf',
    args: [address],
  })

async function pay({ rpcArbitrum, payTo }: Ready) {
  const account = privateKeyToAccount((await readFile(walletKeyFile, 'utf8')).trim() as `0x${string}`)
  const wallet = createWalletClient({ account, transport: http(rpcArbitrum) })
  const hash = await wallet.writeContract({
    chain: null,
    address: CHAINS.arbitrum.tokens.usdc.address,
    abi: erc20Abi,
    functionName: 'transfer',
    args: [payTo, 500_000n],
  })
  await readerOf(rpcArbitrum).waitForTransactionReceipt({ hash, pollingInterval: 20 })
  return hash
}

const isDown = async (url: string): Promise<boolean> =>
  fetch(url, { method: 'POST' }).then(
    () => false,
    () => true,
  )

test('both chains have their ids, our token, and a wallet that can pay; keys are private and random', async () => {
  const chain = await start()

  assert.equal(await readerOf(chain.rpcArbitrum).getChainId(), 42161)
  assert.equal(await readerOf(chain.rpcBase).getChainId(), 8453)
  await pay(chain)
  assert.equal(await balanceOf(chain.rpcArbitrum, chain.payTo), 500_000n)
  assert.equal((await stat(walletKeyFile)).mode & 0o777, 0o600)
  assert.notEqual(await readFile(walletKeyFile, 'utf8'), await readFile(settlerKeyFile, 'utf8'))
  assert.match(chain.rpcArbitrum, /^http:\/\/127\.0\.0\.1:/)
  chain.child.kill('SIGTERM')
  await once(chain.child, 'exit')
})

test('a stop keeps the chain and its keys, and a restart can have the same ports', async () => {
  const first = await start()
  const hash = await pay(first)
  const paid = await balanceOf(first.rpcArbitrum, first.payTo)
  first.child.kill('SIGTERM')
  await once(first.child, 'exit')

  const second = await start(first.ports.join())

  assert.equal(second.rpcArbitrum, first.rpcArbitrum)
  assert.equal(second.payTo, first.payTo)
  assert.equal(await balanceOf(second.rpcArbitrum, second.payTo), paid)
  assert.equal((await readerOf(second.rpcArbitrum).getTransactionReceipt({ hash })).status, 'success')
  second.child.kill('SIGTERM')
  await once(second.child, 'exit')
})

test('killed, it leaves no chain behind; a broken file is set aside, and hashes do not repeat', async () => {
  const first = await start()
  const before = await pay(first)
  first.child.kill('SIGKILL')
  await until(async () => (await isDown(first.rpcArbitrum)) && (await isDown(first.rpcBase)), 'both chains ended')
  await truncate(path.join(folder, 'arbitrum.json'), 10)

  const second = await start()
  const again = await pay(second)

  assert.notEqual(again, before)
  assert.equal((await stat(path.join(folder, 'arbitrum.json.broken'))).size, 10)
  second.child.kill('SIGTERM')
  await once(second.child, 'exit')
})

test('it ends when one of its chains ends, so that its parent starts it again', async () => {
  const chain = await start()
  const exited = once(chain.child, 'exit')

  // The chains are the only children of the process.
  const children = await readFile(`/proc/${chain.child.pid}/task/${chain.child.pid}/children`, 'utf8')
  process.kill(Number(children.trim().split(' ')[0]), 'SIGKILL')

  assert.equal((await exited)[0], 1)
  assert.ok(await isDown(chain.rpcBase))
})
