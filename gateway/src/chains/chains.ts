/**
 * Reads chains through their JSON-RPC endpoints.
 *
 * `read` gives all reads of one question to one endpoint, so that they describe one view of the chain. An endpoint that
 * fails, is late or serves another chain is skipped, and the next one gets the whole question. Its chain id is asked each
 * time: an endpoint behind a load balancer can change between two requests, and a payment on a chain where tokens are
 * free must never count.
 */
import type { Log } from '@warren/kit/log'
import { createPublicClient, http, type PublicClient } from 'viem'
import type { Config, Finality } from '../config.ts'
import { CHAINS, type Chain, type ChainName } from './table.ts'

export type ChainReader = {
  chain: Chain
  finality: Finality
  /** Throws ChainUnreachable when every endpoint failed. */
  read<Result>(question: (client: PublicClient) => Promise<Result>): Promise<Result>
}
export type Chains = Record<ChainName, ChainReader>

export class ChainUnreachable extends Error {
  override name = 'ChainUnreachable'
}

const CALL_LIMIT_MS = 3_000
const RETRIES = 1

export function createChains(config: Config, log: Pick<Log, 'warn'>): Chains {
  return {
    arbitrum: createReader(CHAINS.arbitrum, config.rpcArbitrum, config.finalityArbitrum, log),
    base: createReader(CHAINS.base, config.rpcBase, config.finalityBase, log),
  }
}

type Endpoint = { label: string; client: PublicClient }

function createReader(chain: Chain, urls: string[], finality: Finality, log: Pick<Log, 'warn'>): ChainReader {
  const endpoints = urls.map((url, i) => openEndpoint(url, i))
  return {
    chain,
    finality,
    async read(question) {
      let cause: unknown
      for (const { label, client } of endpoints) {
        try {
          const [id, result] = await Promise.all([client.getChainId(), question(client)])
          if (id !== chain.id) throw new Error(`it serves chain ${id}, not ${chain.id}`)
          return result
        } catch (error) {
          cause = error
          log.warn({ chain: chain.name, endpoint: label, reason: describe(error) }, 'chain endpoint failed')
        }
      }
      throw new ChainUnreachable(`no endpoint of ${chain.name} answered`, { cause: new Error(describe(cause)) })
    },
  }
}

function openEndpoint(url: string, position: number): Endpoint {
  // The clients cache nothing: with the default, the head would be up to four seconds old.
  const transport = http(url, { timeout: CALL_LIMIT_MS, retryCount: RETRIES })
  return { label: `${position + 1} (${new URL(url).host})`, client: createPublicClient({ transport, cacheTime: 0 }) }
}

/** URLs of endpoints contain keys, and the library's long messages contain the URL. */
const describe = (error: unknown): string =>
  (error as { shortMessage?: string } | undefined)?.shortMessage ??
  (error instanceof Error && !error.message.includes('http') ? error.message : 'the request failed')
