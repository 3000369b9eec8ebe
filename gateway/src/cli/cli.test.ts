/** `warren gateway` against a gateway of the test, as a process, and what it packs. */
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { x402 } from 'mppx'
import { CHAINS } from '../chains/table.ts'
import { createTestSettler } from '../testing/authorizations.ts'
import {
  activate,
  createDeployGateway,
  createFundedWallet,
  newName,
  PRICE,
  readPool,
  startChains,
} from '../testing/deploys.ts'
import { createTestWallet } from '../testing/wallet.ts'
import { readZip } from '../uploads/read-zip.ts'
import { AnswerError } from './client.ts'
import { readFolder } from './folder.ts'
import { signPayment } from './pay.ts'
import { renderZip } from './zip.ts'

const chains = await startChains()
const settler = await createTestSettler(chains)
const gateway = await createDeployGateway(chains, { config: { settlerKey: settler.key } })
const url = await gateway.app.listen({ host: '127.0.0.1', port: 0 })

const folder = await mkdtemp(path.join(tmpdir(), 'warren-cli-'))
after(() => rm(folder, { recursive: true, force: true }))
const put = async (name: string, text = '') => {
  await mkdir(path.dirname(path.join(folder, name)), { recursive: true })
  await writeFile(path.join(folder, name), text)
}

type Run = { status: number; stdout: string; stderr: string }
const run = (args: string[], env: Record<string, string> = {}): Promise<Run> => {
  const { promise, resolve } = Promise.withResolvers<Run>()
  const options = {
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, WARREN_GATEWAY_URL: url, INIT_CWD: folder, ...env },
  }
  const child = execFile(
    process.execPath,
    [path.join(import.meta.dirname, 'main.ts'), ...args],
    options,
    (error, stdout, stderr) => resolve({ status: error ? Number(error.code) : 0, stdout, stderr }),
  )
  child.stdin?.end()
  return promise
}

test('a folder is packed without what .gitignore and .warrenignore name, with executable bits', async () => {
  for (const name of ['index.html', 'a/b.txt', 'a/dist/x.js', 'debug.log', 'keep.log', 'secret.env', '.git/HEAD'])
    await put(`site/${name}`, name)
  await put('site/node_modules/x/index.js', 'x')
  await put('site/.gitignore', '*.log\n!keep.log\ndist/\n')
  await put('site/.warrenignore', 'secret.env\n')
  await put('site/a/.gitignore', 'b.txt\n')
  await put('site/run.sh', '#!/bin/sh\n')
  await chmod(path.join(folder, 'site/run.sh'), 0o755)
  await symlink('/etc/passwd', path.join(folder, 'site/link'))

  const { files, skipped } = await readFolder(path.join(folder, 'site'))

  const names = files.map((file) => file.path)
  assert.deepEqual(names, ['.gitignore', '.warrenignore', 'a/.gitignore', 'index.html', 'keep.log', 'run.sh'])
  assert.deepEqual(skipped, ['link'])
  assert.deepEqual(
    files.filter((file) => file.isExecutable).map((file) => file.path),
    ['run.sh'],
  )
  const limits = { expandedMaxBytes: 1_000_000, fileMaxBytes: 1_000_000, entriesMax: 100 }
  const unpacked = await readZip(renderZip(files).toString('base64'), limits)
  assert.deepEqual(unpacked.map((file) => file.path).sort(), names)
  const [only] = await readZip(renderZip([{ ...files[0]!, path: 'src/app.js' }]).toString('base64'), limits)
  assert.equal(only!.path, 'src/app.js', 'the only folder of a project is not removed')
})

test('deploy without money says what to do; --pay pays, and the last line is the URL', async () => {
  const [wallet, name] = [await createFundedWallet(chains), newName()]
  await put('plain/index.html', '<h1>hi</h1>')
  const key = wallet.privateKey
  await put('wallet.key', `${key}\n`)

  const asked = await run(['deploy', 'plain', '--name', name, '--key-file', 'wallet.key'])
  assert.equal(asked.status, 1)
  assert.match(asked.stderr, /\$0\.5 to pay \(--pay 1 pays it\)\. Send 500000 units .* with --tx <hash>/)
  const dear = await run(['deploy', 'plain', '--name', name, '--key-file', 'wallet.key', '--pay', '0.1'])
  assert.match(dear.stderr, /asks for \$0\.5, more than --pay 0\.1/)
  const deploying = run(['deploy', 'plain', '--name', name, '--pay', '1'], { WARREN_GATEWAY_WALLET_KEY: key })
  const { rows } = await untilRows(`select id, project_id from gateway.deployments where wallet = $1`, wallet.address)
  await activate(gateway, rows[0].project_id)
  const paid = await deploying

  assert.equal(paid.status, 0, paid.stderr)
  assert.equal(paid.stdout.trim().split('\n').at(-1), `https://${name}.apps.example`)
  assert.match(paid.stderr, /paying \$0\.5 on arbitrum/)
  assert.equal(await readPool(gateway, wallet.address), PRICE)

  const env = { WARREN_GATEWAY_WALLET_KEY: key }
  assert.match((await run(['projects'], env)).stdout, new RegExp(`${rows[0].project_id}  active +${name} `))
  assert.match((await run(['status', rows[0].project_id, rows[0].id], env)).stdout, /^status +ready$/m)
  assert.equal((await run(['logs', rows[0].project_id, rows[0].id], env)).status, 0)
  assert.equal((await run(['balance'], env)).stdout, 'USDC  99.500000\nUSDT  100.000000\n')
  const byFile = await run(['balance', '--key-file', 'wallet.key'])
  assert.equal(byFile.stdout, 'USDC  99.500000\nUSDT  100.000000\n', byFile.stderr)
  const shared = await run(['deploy', 'plain', '--name', newName()], env)
  assert.match(shared.stderr, /Or share the credit of the wallet with --use-credits$/m)
  assert.match((await run(['rm', 'nothing'], env)).stderr, /the wallet has no project nothing/)
  assert.equal((await run(['rm', name], env)).stdout, `deleted ${name}\n`)
})

test('--pay signs for USDC only: a unit of another token may be worth far more', async () => {
  const { account } = createTestWallet()
  const ask = (asset: `0x${string}`) => {
    const accepts = [
      {
        scheme: 'exact' as const,
        network: 'eip155:42161' as const,
        asset,
        amount: '500000',
        payTo: account.address,
        maxTimeoutSeconds: 300,
        extra: { name: 'USD Coin', version: '2' },
      },
    ]
    const resource = { url: 'https://gateway.example/agent/deploy' }
    const header = x402.Header.encodePaymentRequired({ x402Version: 2, resource, accepts })
    return new AnswerError(402, new Headers({ 'payment-required': header }), {})
  }

  await assert.rejects(signPayment(account, ask(account.address), 1), /which is not usdc/)
  assert.ok((await signPayment(account, ask(CHAINS.arbitrum.tokens.usdc.address), 1))['PAYMENT-SIGNATURE'])
})

async function untilRows(text: string, address: string) {
  return until(async () => {
    const result = await gateway.deps.database.pool.query(text, [address.toLowerCase()])
    return result.rows.length > 0 && result
  })
}

test('a key is never shown, and without one the command says where it is read from', async () => {
  await put('bad.key', 'not-a-key-1234')

  const bad = await run(['projects', '--key-file', 'bad.key'])
  assert.deepEqual([bad.status, bad.stdout], [1, ''])
  assert.doesNotMatch(bad.stderr, /1234/)
  const none = await run(['projects'])
  assert.match(none.stderr, /use --key-file, or set WARREN_GATEWAY_WALLET_KEY/)
})

test('a key file or a folder that is absent is named with what it is', async () => {
  const env = { WARREN_GATEWAY_WALLET_KEY: createTestWallet().privateKey }

  const key = await run(['projects', '--key-file', 'absent.key'])
  const absent = await run(['deploy', 'nowhere', '--name', 'x'], env)
  await put('file.txt', '')
  const file = await run(['deploy', 'file.txt', '--name', 'x'], env)

  assert.match(key.stderr, /failed to read the private key of the wallet from \S+absent\.key: ENOENT/)
  assert.match(absent.stderr, /failed to read the folder \S+nowhere: ENOENT/)
  assert.match(file.stderr, /file\.txt is not a folder; name the folder of the project/)
})

test('a deploy continues when the gateway was away for a moment', async () => {
  const answers = [
    undefined,
    { status: 'deploying', deployment_status: 'building' },
    undefined,
    { status: 'ready', endpoint: 'https://x' },
  ]
  const server = createServer((request, response) => {
    const send = (body: object) => void response.end(JSON.stringify(body))
    if (request.method === 'POST')
      return request.resume().on('end', () => send({ projectId: 'p', deploymentId: 'd', message: '' }))
    if (request.url?.includes('/logs')) return void response.end()
    const answer = answers.shift()
    if (answer) send(answer)
    else request.socket.destroy()
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  after(() => server.close())
  const { port } = server.address() as AddressInfo
  await put('site/index.html', 'x')

  const env = {
    WARREN_GATEWAY_WALLET_KEY: createTestWallet().privateKey,
    WARREN_GATEWAY_URL: `http://127.0.0.1:${port}`,
  }
  const { status, stdout, stderr } = await run(['deploy', 'site', '--name', 'x'], env)

  assert.deepEqual([status, stdout], [0, 'https://x\n'], stderr)
})

test('env prints the URL, and in development the chain and a key', async () => {
  const { privateKey } = createTestWallet()
  await put('dev.key', `${privateKey}\n`)

  assert.equal((await run(['env'])).stdout, `WARREN_GATEWAY_URL=${url}\n`)
  const development = await run(['env'], {
    WARREN_GATEWAY_DEV_RPC: 'http://127.0.0.1:1',
    WARREN_GATEWAY_DEV_KEY_FILE: path.join(folder, 'dev.key'),
  })

  const lines = [
    `WARREN_GATEWAY_URL=${url}`,
    'WARREN_GATEWAY_DEV_RPC=http://127.0.0.1:1',
    `WARREN_GATEWAY_DEV_KEY=${privateKey}`,
  ]
  assert.deepEqual(development.stdout.trim().split('\n'), lines)
})
