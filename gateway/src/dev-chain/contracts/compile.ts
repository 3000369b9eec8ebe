/**
 * Compiles TestContracts.sol: `node gateway/src/dev-chain/contracts/compile.ts` writes contracts.json beside it. The result is
 * committed, because compiling takes seconds; contracts.test.ts checks that it belongs to the source.
 */
import { readFileSync, writeFileSync } from 'node:fs'

const SOURCE = 'TestContracts.sol'
type Contract = { abi: unknown[]; evm: { bytecode: { object: string }; deployedBytecode: { object: string } } }
type Output = {
  errors?: { severity: string; formattedMessage: string }[]
  contracts: Record<string, Record<string, Contract>>
}

export async function compileContracts(): Promise<string> {
  const { default: solc } = (await import('solc')) as { default: { compile(input: string): string } }
  const input = {
    language: 'Solidity',
    sources: { [SOURCE]: { content: readFileSync(new URL(SOURCE, import.meta.url), 'utf8') } },
    settings: {
      optimizer: { enabled: true, runs: 200 },
      outputSelection: { '*': { '*': ['abi', 'evm.bytecode.object', 'evm.deployedBytecode.object'] } },
      metadata: { bytecodeHash: 'none' },
    },
  }
  const output = JSON.parse(solc.compile(JSON.stringify(input))) as Output
  const errors = output.errors?.filter(({ severity }) => severity === 'error') ?? []
  if (errors.length > 0) throw new Error(errors.map((error) => error.formattedMessage).join('\n'))
  const contracts = Object.entries(output.contracts[SOURCE]!).map(([name, { abi, evm }]) => [
    name,
    { abi, bytecode: `0x${evm.bytecode.object}`, deployedBytecode: `0x${evm.deployedBytecode.object}` },
  ])
  return `${JSON.stringify(Object.fromEntries(contracts))}\n`
}

if (import.meta.main) writeFileSync(new URL('contracts.json', import.meta.url), await compileContracts())
