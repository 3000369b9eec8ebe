/** A wallet on the development chain of an instance, as a client of its deployment gateway. */
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { until } from '@warren/kit/testing/until'
import { createPublicClient, createWalletClient, erc20Abi, http, parseEther } from 'viem'
import { generatePrivateKey, privateKeyToAccount } from 'viem/accounts'
import { runWarren } from './instance.ts'

export type GatewayWallet = ReturnType<typeof openWallet>
export type Deployed = { projectId: string; deploymentId: string }
export type Status = { status: string; endpoint: string; reason: string; deployment_status: string }
export type Outcome = Deployed & Status
export type Project = { uniqueName: string; files: Record<string, string>; settings?: object }

type Key = `0x${string}`
type Env = { url: string; rpcUrl: string; key: Key }

/** Emulated machines are slow: an install takes minutes. */
const DEPLOY_LIMIT_MS = 15 * 60_000
const USDC = '0xaf88d065e77c8cC2239327C5EDb3A432268e5831'

/** The one that has money from the start, as clients of the development chain find it. */
export async function openDevelopmentWallet(dataDir: string): Promise<GatewayWallet> {
  const { stdout } = await runWarren(dataDir, 'gateway', 'env')
  const [, url, rpcUrl, key] =
    /^WARREN_GATEWAY_URL=(\S+)\nWARREN_GATEWAY_DEV_RPC=(\S+)\nWARREN_GATEWAY_DEV_KEY=(0x\S+)\n$/.exec(stdout) ?? []
  assert.ok(url && rpcUrl && key, stdout)
  return openWallet({ url, rpcUrl, key: key as Key })
}

/** A new one, with money of the other. */
export async function createFundedWallet(funder: GatewayWallet, raw: bigint): Promise<GatewayWallet> {
  const key = generatePrivateKey()
  await funder.fund(privateKeyToAccount(key).address, raw)
  return openWallet({ ...funder.env, key })
}

function openWallet({ url, rpcUrl, key }: Env) {
  const account = privateKeyToAccount(key)
  const sender = createWalletClient({ account, transport: http(rpcUrl) })
  const chain = createPublicClient({ transport: http(rpcUrl) })

  /** A signed request. */
  async function send(method: string, target: string, body?: object, headers: Record<string, string> = {}) {
    const [timestamp, nonce] = [String(Date.now()), randomUUID()]
    const signature = await account.signMessage({ message: `${account.address}:${timestamp}:${nonce}` })
    const signed = {
      'X-Wallet-Address': account.address,
      'X-Timestamp': timestamp,
      'X-Nonce': nonce,
      'X-Signature': signature,
    }
    const init = { method, headers: { ...signed, ...headers }, ...(body ? { body: JSON.stringify(body) } : {}) }
    return fetch(`${url}${target}`, init)
  }

  async function getJson<Body>(target: string): Promise<Body> {
    const response = await send('GET', target)
    const body = await response.json()
    assert.equal(response.status, 200, JSON.stringify(body))
    return body as Body
  }

  async function transfer(to: Key, raw: bigint): Promise<Key> {
    const call = { address: USDC, abi: erc20Abi, functionName: 'transfer', args: [to, raw] } as const
    const hash = await sender.writeContract({ chain: null, ...call })
    await chain.waitForTransactionReceipt({ hash })
    return hash
  }

  const readStatus = ({ projectId, deploymentId }: Deployed) =>
    getJson<Status>(`/agent/deploy/${projectId}/${deploymentId}/status`)

  return {
    env: { url, rpcUrl },
    getJson,
    readStatus,

    /** Pays the gateway. Returns the hash of the transaction. */
    async pay(raw: bigint): Promise<Key> {
      const response = await fetch(`${url}/agent/recipients`)
      const { recipients } = (await response.json()) as { recipients: { address: Key }[] }
      return transfer(recipients[0]!.address, raw)
    },

    /** Gives another account this much USDC, and coins for gas. */
    async fund(address: Key, raw: bigint): Promise<void> {
      const hash = await sender.sendTransaction({ chain: null, to: address, value: parseEther('0.1') })
      await chain.waitForTransactionReceipt({ hash })
      await transfer(address, raw)
    },

    startDeploy(
      { uniqueName, files, settings = {} }: Project,
      headers: Record<string, string> = {},
    ): Promise<Response> {
      const encoded = Object.entries(files).map(([path, text]) => ({
        path,
        content: Buffer.from(text).toString('base64'),
      }))
      const body = { uniqueName, displayName: uniqueName, settings, upload: { type: 'files', files: encoded } }
      return send('POST', '/agent/deploy', body, headers)
    },

    waitForOutcome: (deployed: Deployed): Promise<Status> =>
      until(
        async () => {
          const status = await readStatus(deployed)
          return status.status !== 'deploying' && status
        },
        'the deployment has an outcome',
        DEPLOY_LIMIT_MS,
      ),

    async deleteProjects(): Promise<void> {
      const { projects } = await getJson<{ projects: { id: string }[] }>('/agent/projects')
      for (const { id } of projects) assert.equal((await send('DELETE', `/agent/projects/${id}`)).status, 200)
    },

    isGatewayUp: (): Promise<boolean> =>
      fetch(`${url}/health`).then(
        ({ ok }) => ok,
        () => false,
      ),
  }
}
